"""A group that exchanges tensors with torch.distributed: NCCL between GPUs, gloo between CPUs.

Agreement and aborts use shared memory, as in every group. Ranks connect after the first agreement,
when all are known to be present; they find each other through a file and listen on loopback only.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor

from runtime.errors import EpochEndedError, StagemeshError
from runtime.protocol.step import Step
from stage_worker.collectives.exchange import DoubleBuffer, agree
from stage_worker.collectives.group import PendingSum
from stage_worker.collectives.shared_file import store_path
from stage_worker.collectives.shared_memory_segment import SharedMemorySegment, SpinWait

# The stubs do not know all of it.
_dist: Any = torch.distributed


class TorchGroup:
    """A `RankGroup` over torch.distributed; parts are padded to the widest, as backends require.

    gloo's work is polled, so that an abort or a timeout ends the wait. NCCL's work runs on its own
    stream, which the device's stream waits for and the host does not; NCCL itself ends the process
    of a rank that is stuck for longer than the timeout.
    """

    def __init__(
        self,
        segment: SharedMemorySegment,
        backend: str,
        timeout_seconds: float,
        min_split_tokens: int | None = None,
    ) -> None:
        self.rank = segment.rank
        self.size = segment.size
        self.min_split_tokens = min_split_tokens
        self._segment = segment
        self._backend = backend
        self._timeout = timedelta(seconds=timeout_seconds)
        self._connection: Any = None

    @property
    def waited_seconds(self) -> float:
        """Waits of agreements and, with gloo, of tensor exchanges."""
        return self._segment.waited_seconds

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Connects the ranks after the first agreement."""
        agree(self._segment, step, refusal)
        if self._connection is None:
            self._connection = self._connect()
            self._segment.unlink()

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """Both backends sum each element on one rank, so all ranks get the same bits."""
        return _TorchSum(self, self._connection.allreduce([x]), x)

    def all_reduce_(self, x: Tensor) -> Tensor:
        return self.begin_all_reduce_(x).finish()

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """Padded to the widest share on the way."""
        padded = _padded(x_TW, widths)
        parts = [torch.empty_like(padded) for _ in widths]
        self.finish(self._connection.allgather([parts], [padded]), "an all-gather")
        return _joined(parts, widths)

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """Padded to the widest share on the way."""
        padded = _padded(x_TW, widths)
        parts = [torch.empty_like(padded) for _ in widths] if self.rank == 0 else []
        outputs = [parts] if self.rank == 0 else []
        options = _dist.GatherOptions()
        options.rootRank = 0
        self.finish(self._connection.gather(outputs, [padded], options), "a gather")
        return _joined(parts, widths) if self.rank == 0 else None

    def finish(self, work: Any, what: str) -> None:
        """Waits for `work`: on the host for gloo, on the device for NCCL."""
        try:
            if self._backend == "gloo":
                self._watch(work.is_completed, what)
            work.wait()
        except RuntimeError as exc:
            raise self._failed(what, exc) from exc

    def abort(self, error: StagemeshError) -> None:
        """Also aborts NCCL's connection, because a GPU may be waiting."""
        self._segment.fail(error)
        connection = self._connection  # the device's thread may close it concurrently
        if self._backend == "nccl" and connection is not None:
            connection.abort()

    def close(self) -> None:
        """Closes the connection on a separate thread; gloo then fails the other ranks' waits.

        gloo first completes what was begun, which takes up to the collective timeout if another
        rank has stopped.
        """
        self._segment.close()
        if self._connection is not None:
            connections, self._connection = [self._connection], None
            threading.Thread(target=connections.clear, name="close-group", daemon=True).start()

    def _connect(self) -> Any:
        """Connects; returns when all ranks have."""
        path = store_path(self._segment.path)
        made: Future[Any] = Future()
        # A thread, so that the wait can end if a rank fails before it connects.
        threading.Thread(
            target=self._make, args=(path, made), name="connect-group", daemon=True
        ).start()
        try:
            self._watch(made.done, "connecting")
            connection = made.result()
            # The file can be removed only after all ranks have read it.
            buffer = DoubleBuffer(self._segment, 0)
            buffer.post(torch.zeros(1))
            buffer.collect("connecting")
        except RuntimeError as exc:
            raise self._failed("connecting", exc) from exc
        finally:
            path.unlink(missing_ok=True)
        return connection

    def _make(self, path: Path, made: Future[Any]) -> None:
        try:
            made.set_result(self._make_connection(_dist.FileStore(str(path), self.size)))
        # A thread's boundary: the waiting thread raises it.
        except BaseException as exc:  # noqa: BLE001
            made.set_exception(exc)

    def _make_connection(self, store: Any) -> Any:
        if self._backend == "nccl":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            options: Any = _dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return _dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        options = _dist.ProcessGroupGloo._Options()
        options._timeout = self._timeout
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return _dist.ProcessGroupGloo(store, self.rank, self.size, options)

    def _watch(self, is_done: Callable[[], bool], what: str) -> None:
        pause = SpinWait()
        while not is_done():
            self._segment.check()
            if pause.seconds > self._timeout.total_seconds():
                raise self._segment.timeout("the other ranks", what)
            pause.wait()
        self._segment.waited_seconds += pause.seconds

    def _failed(self, what: str, exc: RuntimeError) -> EpochEndedError:
        """The error of a failed rank if there is one, otherwise the backend's."""
        try:
            self._segment.check()
        except EpochEndedError as error:
            return error
        lines = str(exc).splitlines() or [""]
        return EpochEndedError(cause="collective", detail=f"{what} failed: {lines[0]}")


@dataclass(frozen=True, slots=True)
class _TorchSum:
    """An all-reduce in progress; `work` holds its tensors until it is finished."""

    group: TorchGroup
    work: Any
    x: Tensor

    def finish(self) -> Tensor:
        self.group.finish(self.work, "an all-reduce")
        return self.x


def _padded(x_TW: Tensor, widths: Sequence[int]) -> Tensor:
    return F.pad(x_TW, (0, max(widths) - x_TW.shape[1])).contiguous()


def _joined(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    columns = [part[:, :width] for part, width in zip(parts, widths, strict=True)]
    return torch.cat(columns, dim=1)
