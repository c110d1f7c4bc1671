"""The files in which ranks of one stage meet: where they are, who still has them, and sweeping.

Every rank holds a shared lock on the file it has mapped, and the system takes the lock away when
the process ends, however it does. A file without one has lost all its ranks before any could
unlink it; the next worker that starts on the host sweeps it away.
"""

import fcntl
import hashlib
import mmap
import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from runtime.errors import SharedMemoryError
from runtime.host.logs import get_logger

_NAME = re.compile(r"stagemesh-[0-9a-f]{32}")
_STORE_SUFFIX = ".store"
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

_log = get_logger()


def block_path(name: str) -> Path:
    """Where the ranks of the group `name` meet: in memory, where the system has a place for that.

    Any text is a name; only its digest is in the path.
    """
    return _folder() / f"stagemesh-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def store_path(block: Path) -> Path:
    """The file through which torch.distributed's ranks find each other, while `block` is there."""
    return block.with_name(block.name + _STORE_SUFFIX)


def map_file(path: Path, num_bytes: int) -> mmap.mmap:
    """The file's memory, made by whoever comes first; locked for as long as it is mapped.

    Takes the memory now: where it is short, a later write would end the process. Raises
    `SharedMemoryError`.
    """
    try:
        file = _open_locked(path)
        try:
            os.posix_fallocate(file, 0, num_bytes)
            # It keeps a duplicate of `file`, and with it the lock.
            return mmap.mmap(file, num_bytes)
        finally:
            os.close(file)
    except OSError as exc:
        # Where the folder is read-only, unlink fails even of a file that is not there.
        with suppress(OSError):
            path.unlink()
        raise SharedMemoryError(
            path=str(path),
            num_bytes=num_bytes,
            available_bytes=shutil.disk_usage(path.parent).free,
            problem=exc.strerror or str(exc),
        ) from exc


def remove_stale_files() -> None:
    """Unlinks what ranks of this user that were killed have left on this host."""
    # In order, a block comes before its store.
    for path in sorted(_folder().glob("stagemesh-*")):
        block = path.with_name(path.name.removesuffix(_STORE_SUFFIX))
        if _NAME.fullmatch(block.name) and _unlink_unheld(block):
            if path != block:
                path.unlink(missing_ok=True)
            _log.info("leftover_swept", path=str(path))


def _open_locked(path: Path) -> int:
    """The file, open and locked; made anew where a sweep has unlinked it in between."""
    while True:
        file = os.open(path, _FLAGS | os.O_CREAT, mode=0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _unlink_unheld(block: Path) -> bool:
    """Whether it is gone, because no rank had it. Who opens it at this moment sees that."""
    try:
        file = os.open(block, _FLAGS)
    except FileNotFoundError:
        return True
    except OSError:  # another user's
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another sweep may have unlinked it meanwhile, and a rank made it anew.
        if not os.path.samestat(os.fstat(file), block.stat()):
            return False
        block.unlink()
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    finally:
        os.close(file)
    return True


def _folder() -> Path:
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else Path(tempfile.gettempdir())
