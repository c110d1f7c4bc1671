"""The memory that a stage's ranks share: counters to wait on, records, and a buffer for each rank.

Every rank writes its own part only, so nothing is locked. A part has two places, used in turn: who
writes its n-th piece has seen all others' piece n - 1, hence they are done with its piece n - 2.

The block is a file that all ranks map, made by whoever comes first. It is unlinked once all have
come or one has ended, so that ranks which are killed leave nothing behind.
"""

import hashlib
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.errors import (
    CollectiveTimeoutError,
    EpochEndedError,
    SharedMemoryError,
    StagemeshError,
)

PIECE_BYTES = 2**20

_LINE_BYTES = 64
_RECORD = struct.Struct("<Q16s64s936s")
_YIELD_SECONDS = 0.001
_SHORT_SLEEP_SECONDS, _LONG_SLEEP_SECONDS = 0.00005, 0.001


@dataclass(frozen=True, slots=True)
class Record:
    """What one rank says: about a step (its number and digest), or, with a `code`, why it ends."""

    step: int
    digest: bytes
    code: str = ""
    detail: str = ""

    @classmethod
    def of_error(cls, error: StagemeshError) -> "Record":
        """The record that `end` turns into an error again."""
        end = EpochEndedError.by(error)
        return cls(0, b"", end.cause, end.detail)

    def pack(self) -> bytes:
        """Texts that are too long are cut."""
        return _RECORD.pack(
            self.step, self.digest, self.code.encode()[:64], self.detail.encode()[:936]
        )

    @classmethod
    def unpack(cls, data: bytes) -> "Record":
        """What `pack` has packed."""
        step, digest, code, detail = _RECORD.unpack(data)
        code, detail = (text.rstrip(b"\0").decode(errors="ignore") for text in (code, detail))
        return cls(step, digest, code, detail)

    def end(self, rank: int) -> EpochEndedError:
        """What the other ranks raise when `rank` says this."""
        return EpochEndedError(cause=self.code, detail=f"rank {rank}: {self.detail}")


class SharedBlock:
    """One rank's mapping of the block. Waits give the core away and end within the timeout.

    Raises `EpochEndedError` for as long as any rank has ended, `CollectiveTimeoutError` when one
    does not come.
    """

    def __init__(self, name: str, rank: int, size: int, timeout_seconds: float) -> None:
        self.rank = rank
        self.size = size
        self.path = block_path(name)
        self._timeout_seconds = timeout_seconds
        self._memory = _map(self.path, size)
        counters = np.frombuffer(self._memory, np.uint64, count=3 * size * _LINE_BYTES // 8)
        columns = counters.reshape(3, size, -1)[:, :, 0]
        self._agreed, self._written, self._ended = columns
        self._records_begin = counters.nbytes
        self._buffers = self._map_buffers()
        self._num_agreed = self._num_written = 0
        self._ending = threading.Lock()
        self._fence = threading.Lock()

    def exchange_records(self, record: Record) -> list[Record]:
        """Shows `record` to all ranks and returns theirs, by rank."""
        self.show_record(record)
        self._wait(self._agreed, self._num_agreed, f"the agreement on step {record.step}")
        if self._num_agreed == 1:
            self.path.unlink(missing_ok=True)
        place = self._num_agreed % 2
        return [self._read_record(rank, place) for rank in range(self.size)]

    def show_record(self, record: Record) -> None:
        """Shows `record` without waiting for the others."""
        self._num_agreed += 1
        self._write_record(record, self._num_agreed % 2)
        self._publish(self._agreed, self._num_agreed)

    def exchange(self, piece: Tensor, what: str) -> Sequence[Tensor]:
        """Shows at most `PIECE_BYTES` to all ranks and returns views of their buffers, by rank.

        `piece` is flat; the views have its dtype and are valid until the next exchange.
        """
        self._num_written += 1
        views = [buffer.view(piece.dtype) for buffer in self._buffers[self._num_written % 2]]
        views[self.rank][: piece.numel()].copy_(piece)
        self._publish(self._written, self._num_written)
        self._wait(self._written, self._num_written, what)
        return views

    def check(self) -> None:
        """Raises `EpochEndedError` if a rank has ended."""
        if self._ended.any():
            rank = int(self._ended.argmax())
            raise self._read_record(rank, 2).end(rank)

    def end(self, error: StagemeshError) -> None:
        """Says why this rank ends, the first time; from any thread. Nobody needs the file then."""
        with self._ending:
            if not self._ended[self.rank]:
                self._write_record(Record.of_error(error), 2)
                self._publish(self._ended, 1)
                self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends this rank; the memory goes with the last reference, for a thread may still look."""
        self.end(EpochEndedError(cause="closed", detail="it has left the group"))

    def timeout(self, missing: str, what: str) -> CollectiveTimeoutError:
        """The error of a wait for `missing` that has lasted too long."""
        return CollectiveTimeoutError(
            rank=self.rank, missing=missing, what=what, seconds=self._timeout_seconds
        )

    def _wait(self, counters: NDArray[np.uint64], count: int, what: str) -> None:
        pause = Pause()
        while (counters < count).any():
            self.check()
            if pause.seconds > self._timeout_seconds:
                raise self.timeout(f"rank {(counters < count).argmax()}", what)
            pause.wait()
        self._order()

    def _publish(self, counters: NDArray[np.uint64], count: int) -> None:
        self._order()
        counters[self.rank] = count

    def _order(self) -> None:
        """What was written or read before this is so for other processes before what follows.

        x86 keeps that order by itself. Elsewhere a release followed by an acquire keeps it, and a
        lock taken twice is the only way to say that here.
        """
        with self._fence:
            pass
        with self._fence:
            pass

    def _record_offset(self, rank: int, place: int) -> int:
        return self._records_begin + (3 * rank + place) * _RECORD.size

    def _write_record(self, record: Record, place: int) -> None:
        offset = self._record_offset(self.rank, place)
        data = record.pack()
        self._memory[offset : offset + len(data)] = data

    def _read_record(self, rank: int, place: int) -> Record:
        offset = self._record_offset(rank, place)
        return Record.unpack(self._memory[offset : offset + _RECORD.size])

    def _map_buffers(self) -> list[list[Tensor]]:
        """By place, then by rank."""
        begin = _buffers_begin(self.size)
        buffers = torch.frombuffer(self._memory, dtype=torch.uint8, offset=begin)
        rows = buffers.view(2, self.size, PIECE_BYTES)
        return [[rows[place, rank] for rank in range(self.size)] for place in range(2)]


class Pause:
    """Between two looks at a counter: gives the core away at once, and sleeps after a while."""

    def __init__(self) -> None:
        self._begun_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the wait began."""
        return time.monotonic() - self._begun_at

    def wait(self) -> None:
        """Sleeps for a twentieth of the time waited so far, within bounds."""
        waited = self.seconds
        if waited < _YIELD_SECONDS:
            os.sched_yield()
        else:
            time.sleep(min(_LONG_SLEEP_SECONDS, max(_SHORT_SLEEP_SECONDS, waited / 20)))


def block_path(name: str) -> Path:
    """Where the ranks of the group `name` meet: in memory, where the system has a place for that.

    Any text is a name; only its digest is in the path.
    """
    folder = Path("/dev/shm")
    if not folder.is_dir():
        folder = Path(tempfile.gettempdir())
    return folder / f"stagemesh-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def _buffers_begin(size: int) -> int:
    used = 3 * size * (_LINE_BYTES + _RECORD.size)
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE


def _map(path: Path, size: int) -> mmap.mmap:
    """Takes the memory now: where it is short, a later write would end the process."""
    num_bytes = _buffers_begin(size) + 2 * size * PIECE_BYTES
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        file = os.open(path, flags, mode=0o600)
        try:
            os.posix_fallocate(file, 0, num_bytes)
            return mmap.mmap(file, num_bytes)
        finally:
            os.close(file)
    except OSError as exc:
        path.unlink(missing_ok=True)
        problem = exc.strerror or str(exc)
        raise SharedMemoryError(path=str(path), num_bytes=num_bytes, problem=problem) from exc
