"""The memory that a stage's ranks share: counters to wait on, statuses, and buffers for tensors.

Each rank writes only its own part, so no locks are needed. Statuses have two places per rank, used
alternately: a rank that writes status n has read all other ranks' status n - 1, so every rank has
finished reading its status n - 2. `exchange.py` uses the tensor buffers in the same way.

The memory is a file that all ranks map (`shared_file.py`). It is unlinked once every rank has
mapped it or one has failed.
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
from stage_worker.collectives.shared_file import map_file, segment_path

PIECE_BYTES = 2**20
NUM_DOUBLE_BUFFERS = 2
"""The most sums that a rank may have begun and not finished."""

_STATUS_LAYOUT = struct.Struct("<Q16s64s936s")
_STATUS_BYTES = _STATUS_LAYOUT.size
_LINE_BYTES = 64
_YIELD_SECONDS = 0.001
_SHORT_SLEEP_SECONDS, _LONG_SLEEP_SECONDS = 0.00005, 0.001


@dataclass(frozen=True, slots=True)
class RankStatus:
    """What one rank reports to the others: a step's number and digest, or an error `code`."""

    step: int
    digest: bytes
    code: str = ""
    detail: str = ""

    @classmethod
    def from_error(cls, error: StagemeshError) -> "RankStatus":
        """The status that `as_error` converts back."""
        end = EpochEndedError.caused_by(error)
        return cls(0, b"", end.cause, end.detail)

    def pack(self) -> bytes:
        """Fixed-size bytes; `code` and `detail` are truncated to fit."""
        return _STATUS_LAYOUT.pack(
            self.step, self.digest, self.code.encode()[:64], self.detail.encode()[:936]
        )

    @classmethod
    def unpack(cls, data: bytes) -> "RankStatus":
        """The inverse of `pack`."""
        step, digest, code, detail = _STATUS_LAYOUT.unpack(data)
        code, detail = (text.rstrip(b"\0").decode(errors="ignore") for text in (code, detail))
        return cls(step, digest, code, detail)

    def as_error(self, rank: int) -> EpochEndedError:
        """The error that the other ranks raise when `rank` has this status."""
        return EpochEndedError(cause=self.code, detail=f"rank {rank}: {self.detail}")


class SharedMemorySegment:
    """One rank's mapping of the segment.

    Waits yield the core. They raise `EpochEndedError` once any rank has failed and
    `CollectiveTimeoutError` when a rank does not arrive within the timeout.
    """

    def __init__(self, name: str, rank: int, size: int, timeout_seconds: float) -> None:
        self.rank = rank
        self.size = size
        self.path = segment_path(name)
        self.waited_seconds = 0.0
        self._timeout_seconds = timeout_seconds
        self._memory = map_file(self.path, _num_bytes(size))
        num_counters = 2 + NUM_DOUBLE_BUFFERS
        counters = np.frombuffer(
            self._memory, np.uint64, count=num_counters * size * _LINE_BYTES // 8
        )
        # Each counter has its own cache line.
        columns = counters.reshape(num_counters, size, -1)[:, :, 0]
        self._agreed, self._failed = columns[:2]
        self._posted: tuple[NDArray[np.uint64], ...] = tuple(columns[2:])
        self._statuses_begin = counters.nbytes
        self._num_agreed = 0
        self._failing = threading.Lock()
        self._fence = threading.Lock()
        self._is_linked = True

    def exchange_statuses(self, status: RankStatus) -> list[RankStatus]:
        """Publishes `status`, waits for all ranks and returns their statuses, by rank."""
        self.show_status(status)
        self.wait(self._agreed, self._num_agreed, f"the agreement on step {status.step}")
        place = self._num_agreed % 2
        return [self._read_status(rank, place) for rank in range(self.size)]

    def show_status(self, status: RankStatus) -> None:
        """Publishes `status` without waiting for the other ranks."""
        self._num_agreed += 1
        self._write_status(status, self._num_agreed % 2)
        self.publish(self._agreed, self._num_agreed)

    def posted(self, buffer: int) -> NDArray[np.uint64]:
        """The number of pieces that each rank has posted to a double buffer, [ranks]."""
        return self._posted[buffer]

    def buffers(self, buffer: int) -> list[list[Tensor]]:
        """A double buffer's memory, `PIECE_BYTES` each, by place, then by rank."""
        begin = _buffers_begin(self.size)
        bytes_ = torch.frombuffer(self._memory, dtype=torch.uint8, offset=begin)
        rows = bytes_.view(NUM_DOUBLE_BUFFERS, 2, self.size, PIECE_BYTES)[buffer]
        return [[rows[place, rank] for rank in range(self.size)] for place in range(2)]

    def check(self) -> None:
        """Raises `EpochEndedError` if a rank has failed."""
        if self._failed.any():
            rank = int(self._failed.argmax())
            raise self._read_status(rank, 2).as_error(rank)

    def fail(self, error: StagemeshError) -> None:
        """Publishes why this rank ends and unlinks the file, the first time. Thread-safe."""
        with self._failing:
            if not self._failed[self.rank]:
                self._write_status(RankStatus.from_error(error), 2)
                self.publish(self._failed, 1)
                self.unlink()

    def unlink(self) -> None:
        """Removes the file's name, once all ranks have mapped it or none needs it."""
        if self._is_linked:
            self._is_linked = False
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends this rank. The mapping lasts as long as references to it, which threads may hold."""
        self.fail(EpochEndedError(cause="closed", detail="it has left the group"))

    def timeout(self, missing: str, what: str) -> CollectiveTimeoutError:
        """The error of a wait for `missing` that exceeded the timeout."""
        return CollectiveTimeoutError(
            rank=self.rank, missing=missing, what=what, seconds=self._timeout_seconds
        )

    def wait(self, counters: NDArray[np.uint64], count: int, what: str) -> None:
        """Returns once all ranks' counters reach `count`; adds the time to `waited_seconds`."""
        pause = SpinWait()
        while (counters < count).any():
            self.check()
            if pause.seconds > self._timeout_seconds:
                raise self.timeout(f"rank {(counters < count).argmax()}", what)
            pause.wait()
        self.waited_seconds += pause.seconds
        self._order()

    def publish(self, counters: NDArray[np.uint64], count: int) -> None:
        """Makes `count`, and everything written before it, visible to the other ranks."""
        self._order()
        counters[self.rank] = count

    def _order(self) -> None:
        """A memory barrier: other processes see earlier reads and writes before later ones.

        x86 preserves this order by itself. Other processors need a release followed by an acquire,
        which Python only offers by taking a lock twice.
        """
        with self._fence:
            pass
        with self._fence:
            pass

    def _status_offset(self, rank: int, place: int) -> int:
        return self._statuses_begin + (3 * rank + place) * _STATUS_BYTES

    def _write_status(self, status: RankStatus, place: int) -> None:
        offset = self._status_offset(self.rank, place)
        data = status.pack()
        self._memory[offset : offset + len(data)] = data

    def _read_status(self, rank: int, place: int) -> RankStatus:
        offset = self._status_offset(rank, place)
        return RankStatus.unpack(self._memory[offset : offset + _STATUS_BYTES])


class SpinWait:
    """The pause between two reads of a counter: yields the core first, and sleeps later."""

    def __init__(self) -> None:
        self._begun_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._begun_at

    def wait(self) -> None:
        """Sleeps for a twentieth of the time waited so far, within bounds."""
        waited = self.seconds
        if waited < _YIELD_SECONDS:
            os.sched_yield()
        else:
            time.sleep(min(_LONG_SLEEP_SECONDS, max(_SHORT_SLEEP_SECONDS, waited / 20)))


def _buffers_begin(size: int) -> int:
    used = size * ((2 + NUM_DOUBLE_BUFFERS) * _LINE_BYTES + 3 * _STATUS_BYTES)
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE


def _num_bytes(size: int) -> int:
    return _buffers_begin(size) + NUM_DOUBLE_BUFFERS * 2 * size * PIECE_BYTES
