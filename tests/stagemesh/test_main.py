"""Exit codes and error lines of the command itself."""

import io
import sys

import pytest

from runtime.errors import ModelNotFoundError, PortTakenError
from stagemesh import cli


def run_main(*arguments: str) -> object:
    """The exit code of `stagemesh ARGUMENTS`."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    return caught.value.code


def test_version_exits_zero_and_names_the_packages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main("version") == 0
    assert "torch" in capsys.readouterr().out


def test_wrong_usage_exits_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("serve", "m", "--pp", "two") == 2
    assert "--pp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("infer", "hi", "--target", "127.0.0.1:1"), "no mesh answers at 127.0.0.1:1"),
        (("status", "--target", "127.0.0.1:1"), "stagemesh serve MODEL"),
        (("infer", ""), "prompt 0 is empty"),
        (("prepare", "no such model"), "no such model"),
        (("serve", "no such model", "--grpc", "127.0.0.1:0", "--mesh", "127.0.0.1:0"), "no such"),
    ],
)
def test_failure_exits_one_with_one_line(
    arguments: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(*arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert says in lines[0]


def test_infer_with_dash_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run_main("infer", "-") == 1
    assert "prompt 0 is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ModelNotFoundError(model="m", hint="h"), 1),
        (PortTakenError(address="h:1"), 3),
        (BrokenPipeError(), 1),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("ours"), 70),
    ],
)
def test_what_a_command_raises_decides_the_exit_code(
    raised: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "app", fail)
    assert run_main() == code
    assert ("Traceback" in capsys.readouterr().err) == (code == 70)
