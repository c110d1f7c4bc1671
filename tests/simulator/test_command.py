"""The command `stagemesh simulate`."""

import json
from importlib import resources
from pathlib import Path

import pytest

from scheduler import POLICY_NAMES
from simulator.workload.scenarios import make_scenarios
from stagemesh.cli import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main(["simulate", *arguments])
    assert isinstance(exit_info.value.code, int)
    return exit_info.value.code


@pytest.fixture
def azure() -> str:
    return str(resources.files("simulator") / "data" / "azure_code_2023_head.csv")


def test_simulate_of_a_trace_prints_every_policy(
    azure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--trace", azure, "--requests", "20", "--rate", "8") == 0
    out = capsys.readouterr().out
    assert all(name[:5] in out for name in POLICY_NAMES)


def test_simulate_as_json_has_figures_insight_and_goodput(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--requests", "30", "--policy", "adaptive", "--find-goodput", "--json")
    assert run(*arguments, "--plan", "10,30,40") == 0
    adaptive = json.loads(capsys.readouterr().out)["adaptive"]
    assert adaptive["summary"]["num_requests"] == 30
    assert len(adaptive["insight"]["stages"]) == 3
    assert adaptive["goodput"] > 0.0
    assert adaptive["replay_seconds"] > 0.0


def test_simulate_with_a_plot_writes_one_picture_per_policy(tmp_path: Path) -> None:
    assert run("--requests", "10", "--plot", str(tmp_path / "line.png")) == 0
    pictures = sorted(path.name for path in tmp_path.iterdir())
    assert pictures == sorted(f"line-{name}.png" for name in POLICY_NAMES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scenario", "sunny"), "steady"),
        (("--trace", "none.csv"), "none.csv"),
        (("--hardware", "abacus"), "llama2-70b"),
    ],
)
def test_simulate_unknown_name_is_refused_with_the_known_ones(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plan", "79"), "79 are 79 layers, and llama2-70b/h100-80gb/4 has 80"),
        (("--plan", "30,30,30"), "as 20,20,20,20"),
        (("--plan", "20,20,20,20", "--hardware", "bloom-176b/h100-80gb/8"), "as 18,18,17,17"),
        (("--plan", "80", "--scenario", "slow-stage"), "pass at least two stages"),
    ],
)
def test_simulate_plan_that_does_not_fit_the_model_is_refused_with_the_reason(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--requests", "5") == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_simulate_of_a_model_with_other_layers_cuts_all_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--hardware", "bloom-176b/h100-80gb/8", "--policy", "fixed")
    assert run(*arguments, "--requests", "10") == 0
    assert "4 stages of bloom-176b" in " ".join(capsys.readouterr().out.split())


def test_simulate_of_a_heavy_head_keeps_it_on_another_plan() -> None:
    scenario = make_scenarios()["heavy-head"].on("llama2-70b/h100-80gb/4", (40, 40))
    assert scenario.pipeline.shares == pytest.approx((40 / 90, 50 / 90))
    assert scenario.limits.num_steps_in_flight == 4
