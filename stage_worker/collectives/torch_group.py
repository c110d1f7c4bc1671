"""A group that exchanges tensors by torch.distributed: NCCL between GPUs, gloo anywhere.

The agreement and the ends go through shared memory as in every group. The connection is made after
the first agreement, when all ranks are known to be there; ranks find each other through a file, and
listen on loopback only.

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
    """See `RankGroup`. Parts of different widths are padded to the widest, as both backends need.

    gloo's work is watched while it runs, so that an abort or a timeout ends the wait. NCCL's runs
    on a stream of its own, which the device's stream waits for and the host does not; NCCL itself
    ends the process of a rank that is stuck for longer than the timeout.
    """

    def __init__(
        self,
        block: SharedMemorySegment,
        backend: str,
        timeout_seconds: float,
        min_split_tokens: int | None = None,
    ) -> None:
        self.rank = block.rank
        self.size = block.size
        self.min_split_tokens = min_split_tokens
        self._block = block
        self._backend = backend
        self._timeout = timedelta(seconds=timeout_seconds)
        self._connection: Any = None

    @property
    def waited_seconds(self) -> float:
        """For agreements and, with gloo, for what the ranks exchange."""
        return self._block.waited_seconds

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Connects the ranks after the first agreement."""
        agree(self._block, step, refusal)
        if self._connection is None:
            self._connection = self._connect()
            self._block.unlink()

    def begin_all_reduce_(self, x: Tensor) -> PendingSum:
        """Both backends add each element up in one place and send it to all."""
        return _Sum(self, self._connection.allreduce([x]), x)

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Begun and finished."""
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
        """Waits for what was begun: on the host for gloo, on the device for NCCL."""
        try:
            if self._backend == "gloo":
                self._watch(work.is_completed, what)
            work.wait()
        except RuntimeError as exc:
            raise self._failed(what, exc) from exc

    def abort(self, end: StagemeshError) -> None:
        """NCCL is told too: a GPU may be waiting."""
        self._block.end(end)
        connection = self._connection  # which the device's thread may close meanwhile
        if self._backend == "nccl" and connection is not None:
            connection.abort()

    def close(self) -> None:
        """Closes the connection, at which gloo ends what the other ranks wait for.

        gloo first finishes what was begun, for as long as the collective timeout where another rank
        has stopped. Nobody else has to wait for that.
        """
        self._block.close()
        if self._connection is not None:
            connections, self._connection = [self._connection], None
            threading.Thread(target=connections.clear, name="close-group", daemon=True).start()

    def _connect(self) -> Any:
        """Returns when all ranks have connected."""
        path = store_path(self._block.path)
        made: Future[Any] = Future()
        # Nothing else ends the wait for a rank that is gone before it has connected.
        threading.Thread(
            target=self._make, args=(path, made), name="connect-group", daemon=True
        ).start()
        try:
            self._watch(made.done, "connecting")
            connection = made.result()
            # Only now has everybody read the file.
            track = DoubleBuffer(self._block, 0)
            track.post(torch.zeros(1))
            track.collect("connecting")
        except RuntimeError as exc:
            raise self._failed("connecting", exc) from exc
        finally:
            path.unlink(missing_ok=True)
        return connection

    def _make(self, path: Path, made: Future[Any]) -> None:
        try:
            made.set_result(self._make_connection(_dist.FileStore(str(path), self.size)))
        # A thread's boundary: it is raised again in the one that waits.
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
            self._block.check()
            if pause.seconds > self._timeout.total_seconds():
                raise self._block.timeout("the other ranks", what)
            pause.wait()
        self._block.waited_seconds += pause.seconds

    def _failed(self, what: str, exc: RuntimeError) -> EpochEndedError:
        """What a rank that ended says, before what the backend makes of it."""
        try:
            self._block.check()
        except EpochEndedError as end:
            return end
        lines = str(exc).splitlines() or [""]
        return EpochEndedError(cause="collective", detail=f"{what} failed: {lines[0]}")


@dataclass(frozen=True, slots=True)
class _Sum:
    """An all-reduce under way; `work` keeps its tensors until it is finished."""

    group: TorchGroup
    work: Any
    x: Tensor

    def finish(self) -> Tensor:
        """Waits for it."""
        self.group.finish(self.work, "an all-reduce")
        return self.x


def _padded(x_TW: Tensor, widths: Sequence[int]) -> Tensor:
    return F.pad(x_TW, (0, max(widths) - x_TW.shape[1])).contiguous()


def _joined(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    columns = [part[:, :width] for part, width in zip(parts, widths, strict=True)]
    return torch.cat(columns, dim=1)
