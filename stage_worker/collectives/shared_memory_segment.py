"""The memory that a stage's ranks share: counters to wait on, records, and buffers for tensors.

Every rank writes its own part only, so nothing is locked. What ranks show each other is in one of
two places, used in turn: who writes its n-th record has seen all others' record n - 1, hence they
are done with its record n - 2. `track.py` does the same with tensors.

The memory is a file that all ranks map (`shared_file.py`), unlinked once all have come or one has
ended.
"""

import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.errors import CollectiveTimeoutError, EpochEndedError, StagemeshError
from stage_worker.collectives.shared_file import block_path, map_file

PIECE_BYTES = 2**20
NUM_TRACKS = 2
"""As many sums as a rank has begun and not finished at most."""

_STATUS_LAYOUT = struct.Struct("<Q16s64s936s")
_STATUS_BYTES = _STATUS_LAYOUT.size
_LINE_BYTES = 64
_YIELD_SECONDS = 0.001
_SHORT_SLEEP_SECONDS, _LONG_SLEEP_SECONDS = 0.00005, 0.001


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank says: about a step (its number and digest), or, with a `code`, why it ends."""

    step: int
    digest: bytes
    code: str = ""
    detail: str = ""

    @classmethod
    def of_error(cls, error: StagemeshError) -> "RankStatus":
        """The record that `end` turns into an error again."""
        end = EpochEndedError.by(error)
        return cls(0, b"", end.cause, end.detail)

    def pack(self) -> bytes:
        """Texts that are too long are cut."""
        return _STATUS_LAYOUT.pack(
            self.step, self.digest, self.code.encode()[:64], self.detail.encode()[:936]
        )

    @classmethod
    def unpack(cls, data: bytes) -> "RankStatus":
        """What `pack` has packed."""
        step, digest, code, detail = _STATUS_LAYOUT.unpack(data)
        code, detail = (text.rstrip(b"\0").decode(errors="ignore") for text in (code, detail))
        return cls(step, digest, code, detail)

    def end(self, rank: int) -> EpochEndedError:
        """What the other ranks raise when `rank` says this."""
        return EpochEndedError(cause=self.code, detail=f"rank {rank}: {self.detail}")


class SharedMemorySegment:
    """One rank's mapping of the block. Waits give the core away and end within the timeout.

    Raises `EpochEndedError` for as long as any rank has ended, `CollectiveTimeoutError` when one
    does not come.
    """

    def __init__(self, name: str, rank: int, size: int, timeout_seconds: float) -> None:
        self.rank = rank
        self.size = size
        self.path = block_path(name)
        self.waited_seconds = 0.0
        self._timeout_seconds = timeout_seconds
        self._memory = map_file(self.path, _num_bytes(size))
        num_counters = 2 + NUM_TRACKS
        counters = np.frombuffer(
            self._memory, np.uint64, count=num_counters * size * _LINE_BYTES // 8
        )
        # Each in a cache line of its own.
        columns = counters.reshape(num_counters, size, -1)[:, :, 0]
        self._agreed, self._ended = columns[:2]
        self._posted: tuple[NDArray[np.uint64], ...] = tuple(columns[2:])
        self._records_begin = counters.nbytes
        self._num_agreed = 0
        self._ending = threading.Lock()
        self._fence = threading.Lock()
        self._is_linked = True

    def exchange_records(self, record: RankStatus) -> list[RankStatus]:
        """Shows `record` to all ranks and returns theirs, by rank."""
        self.show_record(record)
        self.wait(self._agreed, self._num_agreed, f"the agreement on step {record.step}")
        place = self._num_agreed % 2
        return [self._read_record(rank, place) for rank in range(self.size)]

    def show_record(self, record: RankStatus) -> None:
        """Shows `record` without waiting for the others."""
        self._num_agreed += 1
        self._write_record(record, self._num_agreed % 2)
        self.publish(self._agreed, self._num_agreed)

    def posted(self, track: int) -> NDArray[np.uint64]:
        """How many pieces each rank has posted on a track, [ranks]."""
        return self._posted[track]

    def buffers(self, track: int) -> list[list[Tensor]]:
        """A track's buffers of `PIECE_BYTES`, by place, then by rank."""
        begin = _buffers_begin(self.size)
        bytes_ = torch.frombuffer(self._memory, dtype=torch.uint8, offset=begin)
        rows = bytes_.view(NUM_TRACKS, 2, self.size, PIECE_BYTES)[track]
        return [[rows[place, rank] for rank in range(self.size)] for place in range(2)]

    def check(self) -> None:
        """Raises `EpochEndedError` if a rank has ended."""
        if self._ended.any():
            rank = int(self._ended.argmax())
            raise self._read_record(rank, 2).end(rank)

    def end(self, error: StagemeshError) -> None:
        """Says why this rank ends, the first time; from any thread. Nobody needs the file then."""
        with self._ending:
            if not self._ended[self.rank]:
                self._write_record(RankStatus.of_error(error), 2)
                self.publish(self._ended, 1)
                self.unlink()

    def unlink(self) -> None:
        """Takes the file's name away: all ranks have it, or none needs it any more."""
        if self._is_linked:
            self._is_linked = False
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends this rank; the memory goes with the last reference, for a thread may still look."""
        self.end(EpochEndedError(cause="closed", detail="it has left the group"))

    def timeout(self, missing: str, what: str) -> CollectiveTimeoutError:
        """The error of a wait for `missing` that has lasted too long."""
        return CollectiveTimeoutError(
            rank=self.rank, missing=missing, what=what, seconds=self._timeout_seconds
        )

    def wait(self, counters: NDArray[np.uint64], count: int, what: str) -> None:
        """Returns once all ranks' counters are at `count`; the time counts as waited."""
        pause = SpinWait()
        while (counters < count).any():
            self.check()
            if pause.seconds > self._timeout_seconds:
                raise self.timeout(f"rank {(counters < count).argmax()}", what)
            pause.wait()
        self.waited_seconds += pause.seconds
        self._order()

    def publish(self, counters: NDArray[np.uint64], count: int) -> None:
        """Lets the other ranks see `count`, and with it all that was written before."""
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
        return self._records_begin + (3 * rank + place) * _STATUS_BYTES

    def _write_record(self, record: RankStatus, place: int) -> None:
        offset = self._record_offset(self.rank, place)
        data = record.pack()
        self._memory[offset : offset + len(data)] = data

    def _read_record(self, rank: int, place: int) -> RankStatus:
        offset = self._record_offset(rank, place)
        return RankStatus.unpack(self._memory[offset : offset + _STATUS_BYTES])


class SpinWait:
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


def _buffers_begin(size: int) -> int:
    used = size * ((2 + NUM_TRACKS) * _LINE_BYTES + 3 * _STATUS_BYTES)
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE


def _num_bytes(size: int) -> int:
    return _buffers_begin(size) + NUM_TRACKS * 2 * size * PIECE_BYTES
