"""The options of each command of `benchmarks.live`."""

import argparse
from pathlib import Path

from benchmarks.command import above_zero, checked, threads, whole
from scheduler import POLICY_NAMES, PolicyName
from stagemesh.units import parse_layers

PACED = Path(__file__).parent / "paced"
LAYERS = (8, 8, 7, 7)
"""The bundled model's layers in four stages; simulated stages have no head to balance."""
TAKES = {
    "policies": "10 minutes",
    "simulator": "8 minutes",
    "recovery": "7 minutes",
    "smollm2": "6 minutes",
}
EXAMPLES = {
    "policies": "--policies fixed,adaptive --requests 20",
    "simulator": "--policies adaptive --requests 20",
    "recovery": "--policies adaptive --sequences 8",
    "smollm2": "--policies fixed,adaptive --batches 1 --repeats 1",
}


def parse_policies(names: str) -> tuple[PolicyName, ...]:
    """Parses policy names separated by commas, or `all`."""
    asked = POLICY_NAMES if names == "all" else names.split(",")
    unknown = ", ".join(repr(name) for name in asked if name not in POLICY_NAMES)
    if unknown:
        known = ", ".join(POLICY_NAMES)
        problem = f"there is no policy {unknown}; choose from {known}, with commas between, or all"
        raise argparse.ArgumentTypeError(problem)
    return tuple(name for name in POLICY_NAMES if name in asked)


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Those of the command `name`."""
    add = parser.add_argument
    add("--policies", type=parse_policies, default="all", help="as fixed,adaptive, or all")
    if name == "smollm2":
        add("--pp", type=whole(), default=2, help="stages")
        add(
            "--threads",
            type=threads,
            default=1,
            help="compute threads a stage",
        )
        add("--tokens", type=whole(), default=64, help="new tokens per prompt")
        add("--repeats", type=whole(), default=3, help="runs per batch and policy")
        add("--batches", type=whole(), nargs="+", default=[1, 32], help="batch sizes")
        return
    file = "slow-stage.json" if name == "recovery" else "llama2-70b.json"
    add("--paced", type=Path, default=PACED / file, metavar="FILE", help="the stages' times")
    layers = ",".join(map(str, LAYERS))
    add("--layers", type=checked(parse_layers), default=layers, help="of each stage")
    if name == "recovery":
        add("--sequences", type=whole(most=64), default=32, help="that decode all the time")
        add("--seconds", type=above_zero(), default=30.0, help="after the change")
        return
    add("--requests", type=whole(2), default=80, help="of the trace")
    add("--rate", type=above_zero(), default=1.5, help="requests a second")
    add("--seed", type=whole(0), default=0, help="which request of the trace is the first")
