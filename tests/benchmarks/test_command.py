"""What the benchmarks' command lines take, refuse and teach; nothing is measured."""

import argparse
import importlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import command
from runtime.errors import LaunchError
from stagemesh.client.rpc_error import StagemeshRpcError

BENCHMARKS = (
    *("churn", "hop", "live", "metrics_overhead", "overlap"),
    *("parallel", "policies", "recovery", "scheduler", "serving"),
)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The command line of `python -m benchmarks.NAME`."""
    parser = importlib.import_module(f"benchmarks.{name}").make_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def all_parsers(name: str) -> Iterator[argparse.ArgumentParser]:
    """That, and those of its commands."""
    parser = parser_of(name)
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_help_states_what_it_measures_and_shows_examples(name: str) -> None:
    for parser in all_parsers(name):
        shown = parser.format_help()
        assert shown.startswith(f"usage: python -m benchmarks.{name}")
        assert parser.description
        assert "\nTakes " in shown
        assert f"\nExamples:\n    python -m benchmarks.{name}" in shown
        assert all(action.help or action.choices for action in parser._actions), shown


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_accepts_the_examples_of_its_help(name: str) -> None:
    for parser in all_parsers(name):
        prefix = f"    python -m benchmarks.{name}"
        lines = [line for line in (parser.epilog or "").splitlines() if line.startswith(prefix)]
        assert lines
        for line in lines:
            parser_of(name).parse_args(shlex.split(line.removeprefix(prefix)))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_number_option_of_a_benchmark_is_bounded(name: str) -> None:
    for parser in all_parsers(name):
        for action in parser._actions:
            assert action.type not in (int, float), action.option_strings
            numbers = [action.default, *(action.default if type(action.default) is list else ())]
            if any(type(number) in (int, float) for number in numbers):
                assert callable(action.type), action.option_strings
                for text in ("-1", "nan", "x"):
                    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is no"):
                        action.type(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("policies --seeds 0", "--seeds: '0' is no whole number from 1"),
        ("policies --requests 0", "--requests: '0' is no whole number"),
        ("policies --jobs 0", "--jobs"),
        ("policies --scenario sunny", "steady"),
        ("policies --json no-such-folder/x.json", "there is no folder no-such-folder"),
        ("parallel --tp 0", "--tp: '0' is no whole number"),
        ("serving --batch -8", "--batch: '-8' is no whole number"),
        ("serving --layers 3,x", "write for example 3,20,7"),
        ("serving --pp 2 --layers 1,2,3", "--layers, which names 3 stages"),
        ("overlap --tp 2,0", "each stage needs at least 1"),
        ("overlap --tp 2,1,1", "--tp names 3 stages of 2"),
        ("overlap --backend mpi", "shm"),
        ("live policies --policies fixed,fastest", "there is no policy 'fastest'"),
        ("live simulator --rate 0", "--rate: '0' is no number above 0"),
        ("live simulator --rate inf", "--rate: 'inf' is no number above 0"),
        ("live dance", "recovery"),
        ("scheduler --memory 0", "--memory"),
        ("scheduler --memory 0.01 --running 10", "holds none of 10 requests"),
        ("hop --alone 1", "--alone: '1' is no whole number from 2"),
    ],
)
def test_benchmark_invalid_value_is_refused_with_the_reason(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = shlex.split(line)
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"benchmarks.{name}").main()
    assert caught.value.code == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert message in shown
    assert f"usage: python -m benchmarks.{name}" in shown


def end_of(work: Callable[[], object]) -> object:
    """The exit code that `run` ends with."""
    with pytest.raises(SystemExit) as caught:
        command.run(work)
    return caught.value.code


def raising(error: BaseException) -> Callable[[], object]:
    """Work that fails so."""

    def work() -> None:
        raise error

    return work


def test_run_ends_with_the_code_that_is_returned_or_zero() -> None:
    assert end_of(lambda: 3) == 3
    assert end_of(lambda: None) == 0
    assert end_of(raising(KeyboardInterrupt())) == 130


@pytest.mark.parametrize(
    "error",
    [
        LaunchError(problem="layers 1 do not fit"),
        StagemeshRpcError("queue_full", "RESOURCE_EXHAUSTED", "layers 1 do not fit"),
        ExceptionGroup("tasks", [ExceptionGroup("", [LaunchError(problem="layers 1 do not fit")])]),
    ],
)
def test_run_expected_error_is_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_of(raising(error)) == 1
    assert capsys.readouterr().err == "error: layers 1 do not fit\n"


def test_run_unexpected_error_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        command.run(raising(ZeroDivisionError()))


def test_output_file_in_an_existing_folder_is_accepted(tmp_path: Path) -> None:
    assert command.new_file(str(tmp_path / "x.json")) == tmp_path / "x.json"
