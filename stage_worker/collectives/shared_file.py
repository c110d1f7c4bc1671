"""The files that ranks of one stage share: their paths, locks, and removal of stale ones.

Every rank holds a shared lock on the file it has mapped; the operating system releases the lock
when the process ends. A file without a lock has lost all its ranks before any could unlink it; the
next worker that starts on the host removes it.
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


def segment_path(name: str) -> Path:
    """The path of the segment of group `name`: on a memory file system where there is one.

    `name` may be any text; the path has only its digest.
    """
    return _folder() / f"stagemesh-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def store_path(segment: Path) -> Path:
    """The path of torch.distributed's rendezvous file, which exists no longer than `segment`."""
    return segment.with_name(segment.name + _STORE_SUFFIX)


def map_file(path: Path, num_bytes: int) -> mmap.mmap:
    """Maps the file, which the first rank creates; it stays locked while it is mapped.

    Allocates the memory now, because a later write without memory would kill the process. Raises
    `SharedMemoryError`.
    """
    try:
        file = _open_locked(path)
        try:
            os.posix_fallocate(file, 0, num_bytes)
            # The mapping keeps a duplicate of `file`, and so the lock.
            return mmap.mmap(file, num_bytes)
        finally:
            os.close(file)
    except OSError as exc:
        # In a read-only folder, unlink fails even for a file that does not exist.
        with suppress(OSError):
            path.unlink()
        raise SharedMemoryError(
            path=str(path),
            num_bytes=num_bytes,
            available_bytes=shutil.disk_usage(path.parent).free,
            problem=exc.strerror or str(exc),
        ) from exc


def remove_stale_files() -> None:
    """Unlinks the files that killed ranks of this user have left on this host."""
    # Sorted, a segment comes before its store.
    for path in sorted(_folder().glob("stagemesh-*")):
        segment = path.with_name(path.name.removesuffix(_STORE_SUFFIX))
        if _NAME.fullmatch(segment.name) and _unlink_unheld(segment):
            if path != segment:
                path.unlink(missing_ok=True)
            _log.info("stale_file_removed", path=str(path))


def _open_locked(path: Path) -> int:
    """Opens and locks the file; creates it again if it was unlinked in between."""
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


def _unlink_unheld(segment: Path) -> bool:
    """Unlinks a segment that no rank holds; returns whether it no longer exists."""
    try:
        file = os.open(segment, _FLAGS)
    except FileNotFoundError:
        return True
    except OSError:  # another user's
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have unlinked it, and a rank created it again.
        if not os.path.samestat(os.fstat(file), segment.stat()):
            return False
        segment.unlink()
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
