"""Parsing of command lines and environment variables."""

from typing import Any

import pytest
from cyclopts import CycloptsError
from rich.console import Console

from stagemesh.cli import app
from stagemesh.cli.options.common import (
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
    ProcessLogOptions,
)
from stagemesh.cli.options.option_types import as_arguments

COMMANDS = (
    "serve",
    "infer",
    "chat",
    "status",
    "demo",
    "prepare",
    "coordinator",
    "worker",
    "version",
)


def parse(*tokens: str) -> dict[str, Any]:
    """The arguments of the command's function."""
    _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    return {**bound.arguments}


def test_serve_without_options_uses_defaults() -> None:
    assert parse("serve", "smollm2") == {"model": "smollm2"}


def test_serve_options_are_parsed_into_groups() -> None:
    arguments = parse(
        *("serve", "m", "--pp", "3", "--layers", "3,20,7", "--kv-memory", "2GiB"),
        *("--grpc", "0.0.0.0:1", "--threads", "4", "--log-json"),
    )
    assert arguments["plan"] == PlanOptions(pp=3, layers=(3, 20, 7))
    assert arguments["batching"] == BatchingOptions(kv_memory=2 * 2**30)
    assert arguments["addresses"] == AddressOptions(grpc="0.0.0.0:1")
    assert arguments["device"] == DeviceOptions(threads=4)
    assert arguments["logs"] == LogOptions(log_json=True)


@pytest.mark.parametrize("prompt", ["-", "-1 + 1?", "--max-tokens is what?"])
def test_infer_prompt_may_start_with_a_hyphen(prompt: str) -> None:
    assert parse("infer", "--target", "h:1", "--", prompt)["prompt"] == prompt
    assert parse("infer", "-", "--raw", "--max-tokens", "3") == {
        "prompt": "-",
        "raw": True,
        "max_tokens": 3,
    }


def test_options_from_the_environment_apply_to_every_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGEMESH_MODEL", "from-env")
    monkeypatch.setenv("STAGEMESH_LAYERS", "1,2")
    monkeypatch.setenv("STAGEMESH_KV_MEMORY", "1MiB")
    monkeypatch.setenv("STAGEMESH_LOG_JSON", "true")
    logs = {"serve": LogOptions(log_json=True), "coordinator": ProcessLogOptions(log_json=True)}
    for command in logs:
        arguments = parse(command)
        assert arguments["model"] == "from-env"
        assert arguments["plan"] == PlanOptions(layers=(1, 2))
        assert arguments["batching"] == BatchingOptions(kv_memory=2**20)
        assert arguments["logs"] == logs[command]


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        (("node", "--coordinator", "h:1"), "STAGEMESH_WORKERS"),
        (("serve", "m"), "STAGEMESH_PP"),
        (("serve", "m"), "STAGEMESH_LOG_JSON"),
        (("serve", "m"), "STAGEMESH_LAYERS"),
        (("worker", "--coordinator", "h:1"), "STAGEMESH_MODEL_PATH"),
    ],
)
def test_empty_variable_is_ignored(
    command: tuple[str, ...], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = parse(*command)
    monkeypatch.setenv(variable, "")
    assert parse(*command) == without


def test_empty_variable_of_a_required_option_is_not_a_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGEMESH_COORDINATOR", "")
    with pytest.raises(CycloptsError, match="--coordinator"):
        parse("worker")


def test_option_on_the_command_line_overrides_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAGEMESH_PP", "3")
    assert parse("serve", "m", "--pp", "2")["plan"] == PlanOptions(pp=2)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (("serve",), "MODEL"),
        (("serve", "m", "--nonsense"), "--nonsense"),
        (("serve", "m", "--pp", "0"), "Must be >= 1"),
        (("serve", "m", "--pp", "two"), "two"),
        (("serve", "m", "--layers", "3,x"), "3,20,7"),
        (("serve", "m", "--pp", "2", "--layers", "1,2,3"), "names 3 stages"),
        (("serve", "m", "--kv-memory", "lots"), "512MiB"),
        (("serve", "m", "--dtype", "int3"), "float32"),
        (("serve", "m", "--device", "tpu"), "cpu"),
        (("serve", "m", "--grpc", "50050"), "HOST:PORT"),
        (("serve", "m", "--grpc", "127.0.0.1:65536"), "HOST:PORT"),
        (("serve", "m", "--grpc", "127.0.0.1:5", "--http", "127.0.0.1:5"), "--http 127.0.0.1:5"),
        (("serve", "m", "--grpc", "localhost:5", "--mesh", "127.0.0.1:5"), "its own port"),
        (("serve", "m", "--http", "127.0.0.1:50051"), "--mesh 127.0.0.1:50051"),
        (("coordinator", "m", "--grpc", "0.0.0.0:8000"), "--http 127.0.0.1:8000"),
        (("worker", "--coordinator", "h:5", "--advertise", "0.0.0.0:5"), "all interfaces"),
        (("worker", "--coordinator", "h:5", "--advertise", "[::]:5"), "all interfaces"),
        (("worker", "--coordinator", "h:5", "--advertise", "h:0"), "name the port"),
        (("worker", "--coordinator", "0.0.0.0:50051"), "127.0.0.1 if all run on this one"),
        (("infer", "hi", "--target", "h:0"), "name the port"),
        (("fault-proxy", "--to", "h:0"), "name the port"),
        (("serve", "m", "--block-size", "-1"), "Must be >= 1"),
        (("serve", "m", "--block-size", "1025"), "Must be <= 1024"),
        (("serve", "m", "--max-sequences", "4097"), "Must be <= 4096"),
        (("serve", "m", "--max-step-tokens", "65537"), "Must be <= 65536"),
        (("serve", "m", "--max-waiting", "1000001"), "Must be <= 1000000"),
        (("worker",), "--coordinator"),
        (("infer", "hi", "--temperature", "-1"), "Must be >= 0"),
        (("infer", "hi", "--temperature", "nan"), "Must be <= 100"),
        (("infer", "hi", "--top-p", "1.5"), "Must be <= 1"),
        (("infer", "hi", "--top-p", "0"), "Must be > 0"),
        (("infer", "hi", "--top-k", "-1"), "Must be >= 0"),
        (("infer", "hi", "--max-tokens", "-1"), "Must be >= 0"),
        (("infer", "hi", "--max-tokens", "99999999999"), "Must be <="),
        (("infer", "hi", "--seed", "18446744073709551616"), "Must be <="),
        (("infer", "hi", "--timeout", "0"), "Must be > 0"),
        (("simulate", "--plot", "no-such-folder/line.png"), "no folder no-such-folder"),
        (("simulate", "--plot", "line.gif"), ".png"),
        (("bench", "serve", "--save", "no-such-folder/run.json"), "no folder no-such-folder"),
        (("bench", "serve", "--save", "."), "is a folder"),
        (("infr", "hi"), "infer"),
        (("infer", "--temprature", "0.5", "hi"), "--temprature is no option"),
        (("infer", "--stat"), "--stat is no option"),
        (("simulate", "--policy", "best"), '"all", "fixed"'),
        (("serve", "m", "--max-request-size", "0"), "from 1KiB to 16MiB"),
        (("serve", "m", "--max-request-size", "17MiB"), "from 1KiB to 16MiB"),
        (("serve", "m", "--threads", "100000"), "Must be <= 1024"),
        (("node", "--coordinator", "h:1", "--workers", "100000"), "Must be <= 256"),
        (("fault-proxy", "--to", "h:1", "--throttle", "0"), "from 1B"),
    ],
)
def test_command_line_with_a_mistake_is_explained(tokens: tuple[str, ...], message: str) -> None:
    with pytest.raises(CycloptsError) as caught:
        parse(*tokens)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(pp=3, layers=(3, 20, 7), max_model_len=100),
        BatchingOptions(kv_memory=12345, steps_in_flight=4),
        AddressOptions(grpc="[::1]:5", mesh="h:0"),
        ProcessLogOptions(log_level="debug", log_json=True),
    ],
)
def test_as_arguments_is_parsed_back_to_equal_options(options: object) -> None:
    arguments = parse("coordinator", "m", *as_arguments(options))
    assert options in arguments.values()


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_names_the_variable_of_every_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app([command, "--help"], console=Console(width=200))
    shown = capsys.readouterr().out
    options = [line for line in shown.splitlines() if " --" in line and "│" in line]
    for option in options:
        assert "[env var: STAGEMESH_" in option
    assert ("Examples" in shown) == (command != "version")
