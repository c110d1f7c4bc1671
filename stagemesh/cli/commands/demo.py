"""Owns `stagemesh demo`: the quickest way to see a mesh at work."""

from rich.console import Console

from stagemesh.cli.demo_run import Demo
from stagemesh.cli.options.common import (
    DEVICE_DEFAULTS,
    LOG_DEFAULTS,
    AddressOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
)
from stagemesh.cli.options.launching import (
    MeshOptions,
    check_options,
    coordinator_options,
    make_launch_plan,
)
from stagemesh.cli.options.option_types import Positive
from stagemesh.display.progress import ProgressView
from stagemesh.launcher.signals import run_interruptible

_FREE_ADDRESSES = AddressOptions(grpc="127.0.0.1:0", http="127.0.0.1:0", mesh="127.0.0.1:0")


def demo(
    *,
    model: str = "smollm2",
    prompt: str = "Give me three tips for staying healthy.",
    pp: Positive = 2,
    max_tokens: Positive = 128,
    device: DeviceOptions = DEVICE_DEFAULTS,
    logs: LogOptions = LOG_DEFAULTS,
) -> None:
    """Start a mesh, stream one answer, show what it cost, and stop everything.

    Runs on free ports and disturbs no mesh that runs already.

    Parameters
    ----------
    model
        A folder in Hugging Face layout, a .gguf file, a Hub id as org/name, or smollm2.
    prompt
        What to ask.
    pp
        Pipeline stages, one worker each.
    max_tokens
        Tokens to generate at most.
    """
    news = Console(stderr=True)
    mesh = MeshOptions(PlanOptions(pp=pp), addresses=_FREE_ADDRESSES)
    launch_plan = make_launch_plan(model, mesh, device, logs)
    with ProgressView(news) as progress:
        check_options(coordinator_options(model, mesh), progress)
    run_interruptible(Demo(launch_plan, prompt, max_tokens, Console(), news).run)
