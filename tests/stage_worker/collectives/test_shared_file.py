"""The files that ranks share: locks, and removal of those that killed ranks left."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from runtime.errors import SharedMemoryError
from stage_worker.collectives import shared_file
from stage_worker.collectives.group_factory import GroupSpec, open_group
from stage_worker.collectives.shared_file import (
    map_file,
    remove_stale_files,
    segment_path,
    store_path,
)

# One rank of two, without its peer.
RANK = """
import sys
from stage_worker.collectives.group_factory import GroupSpec, open_group
group = open_group(GroupSpec(sys.argv[1], 0, 2))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Replaces /dev/shm; at the end it must contain no files of the group."""
    monkeypatch.setattr(shared_file, "_folder", lambda: tmp_path)
    yield tmp_path
    remove_stale_files()
    assert not list(tmp_path.glob("stagemesh-*"))


def test_remove_stale_files_after_all_ranks_were_killed_leaves_no_file() -> None:
    """Uses /dev/shm and a process that is killed."""
    name = f"test-killed-{id(sys)}"
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        remove_stale_files()
        assert segment_path(name).exists()
        process.kill()
        process.wait()
    assert segment_path(name).exists()
    remove_stale_files()
    assert not segment_path(name).exists()


def test_remove_stale_files_keeps_a_held_segment_and_its_store(folder: Path) -> None:
    memory = map_file(segment_path("held"), 4096)
    store_path(segment_path("held")).touch()
    for name in ("left", "stored"):
        map_file(segment_path(name), 4096).close()
        store_path(segment_path(name)).touch()
    segment_path("stored").unlink()
    remove_stale_files()
    assert {path.name for path in folder.iterdir()} == {
        segment_path("held").name,
        store_path(segment_path("held")).name,
    }
    memory.close()


def test_remove_stale_files_keeps_other_files(folder: Path) -> None:
    names = {"stagemesh-notes", f"stagemesh-{'0' * 31}", f"stagemesh-{'g' * 32}", "other"}
    for name in names:
        (folder / name).touch()
    remove_stale_files()
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        (folder / name).unlink()


def test_map_file_removed_before_it_is_locked_is_created_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, num_calls = fcntl.flock, 0

    def flock_after_a_sweep(file: int, operation: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            segment_path("late").unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_a_sweep)
    first, second = (map_file(segment_path("late"), 4096) for _ in range(2))
    first[:5] = b"there"
    assert second[:5] == b"there"
    assert num_calls == 3
    first.close()
    second.close()


def test_remove_stale_files_keeps_a_segment_created_after_a_concurrent_removal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = segment_path("anew"), fcntl.flock
    rank, has_rank = ExitStack(), False

    def flock_after_another_sweep(file: int, operation: int) -> None:
        nonlocal has_rank
        if operation & fcntl.LOCK_EX and not has_rank:
            has_rank = True
            path.unlink()
            rank.callback(map_file(path, 4096).close)
            store_path(path).touch()
        flock(file, operation)

    map_file(path, 4096).close()
    store_path(path).touch()
    monkeypatch.setattr(fcntl, "flock", flock_after_another_sweep)
    remove_stale_files()
    assert set(folder.iterdir()) == {path, store_path(path)}
    rank.close()


def test_group_close_leaves_no_file(folder: Path) -> None:
    group = open_group(GroupSpec("ends", 0, 2))
    assert list(folder.iterdir()) == [segment_path("ends")]
    group.close()
    assert not list(folder.iterdir())


def test_map_file_in_unwritable_folder_raises_with_the_path(tmp_path: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    with pytest.raises(SharedMemoryError, match="Not a directory"):
        map_file(no_folder / "block", 4096)
