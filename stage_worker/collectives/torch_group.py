"""A group that exchanges tensors by torch.distributed: NCCL between GPUs, gloo anywhere.

The agreement and the ends go through shared memory as in every group. The connection is made after
the first agreement, when all ranks are known to be there; ranks find each other through a file, and
listen on loopback only.

Shapes: T rows, W one rank's columns, A the columns of all ranks.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import Tensor

from runtime.errors import EpochEndedError, StagemeshError
from runtime.step import Step
from stage_worker.collectives.agreement import agree
from stage_worker.collectives.shared_block import Pause, SharedBlock

# The stubs do not know all of it.
_dist: Any = torch.distributed


class TorchGroup:
    """See `RankGroup`. Parts of different widths are padded to the widest, as both backends need.

    gloo's work is watched while it runs, so that an abort or a timeout ends the wait. NCCL's runs
    in the order of the device's stream and is not waited for; NCCL itself ends the process of a
    rank that is stuck for longer than the timeout.
    """

    def __init__(self, block: SharedBlock, backend: str, timeout_seconds: float) -> None:
        self.rank = block.rank
        self.size = block.size
        self._block = block
        self._backend = backend
        self._timeout = timedelta(seconds=timeout_seconds)
        self._connection: Any = None

    def agree(self, step: Step, refusal: StagemeshError | None) -> None:
        """Connects the ranks after the first agreement."""
        agree(self._block, step, refusal)
        if self._connection is None:
            self._connection = self._connect()

    def all_reduce_(self, x: Tensor) -> Tensor:
        """Both backends add each element up in one place and send it to all."""
        self._finish(self._connection.allreduce([x]), "an all-reduce")
        return x

    def all_gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor:
        """Padded to the widest share on the way."""
        padded = _padded(x_TW, widths)
        parts = [torch.empty_like(padded) for _ in widths]
        self._finish(self._connection.allgather([parts], [padded]), "an all-gather")
        return _joined(parts, widths)

    def gather(self, x_TW: Tensor, widths: Sequence[int]) -> Tensor | None:
        """Padded to the widest share on the way."""
        padded = _padded(x_TW, widths)
        parts = [torch.empty_like(padded) for _ in widths] if self.rank == 0 else []
        outputs = [parts] if self.rank == 0 else []
        options = _dist.GatherOptions()
        options.rootRank = 0
        self._finish(self._connection.gather(outputs, [padded], options), "a gather")
        return _joined(parts, widths) if self.rank == 0 else None

    def abort(self, end: StagemeshError) -> None:
        """NCCL is told too: a GPU may be waiting."""
        self._block.end(end)
        if self._backend == "nccl" and self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        """Closes the connection, at which gloo ends what the other ranks wait for."""
        self._block.close()
        self._connection = None

    def _connect(self) -> Any:
        """Blocks until all ranks have connected, within the timeout."""
        path = Path(f"{self._block.path}.store")
        store = _dist.FileStore(str(path), self.size)
        try:
            connection = self._make(store)
            # Only now has everybody read the file.
            self._block.exchange(torch.zeros(1), "connecting")
        except RuntimeError as exc:
            raise self._failed("connecting", exc) from exc
        finally:
            path.unlink(missing_ok=True)
        return connection

    def _make(self, store: Any) -> Any:
        if self._backend == "nccl":
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
            options: Any = _dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return _dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        options = _dist.ProcessGroupGloo._Options()
        options._timeout = self._timeout
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        return _dist.ProcessGroupGloo(store, self.rank, self.size, options)

    def _finish(self, work: Any, what: str) -> None:
        try:
            if self._backend == "gloo":
                self._watch(work, what)
            work.wait()
        except RuntimeError as exc:
            raise self._failed(what, exc) from exc

    def _watch(self, work: Any, what: str) -> None:
        pause = Pause()
        while not work.is_completed():
            self._block.check()
            if pause.seconds > self._timeout.total_seconds():
                raise self._block.timeout("the other ranks", what)
            pause.wait()

    def _failed(self, what: str, exc: RuntimeError) -> EpochEndedError:
        """What a rank that ended says, before what the backend makes of it."""
        try:
            self._block.check()
        except EpochEndedError as end:
            return end
        lines = str(exc).splitlines() or [""]
        return EpochEndedError(cause="collective", detail=f"{what} failed: {lines[0]}")


def _padded(x_TW: Tensor, widths: Sequence[int]) -> Tensor:
    return F.pad(x_TW, (0, max(widths) - x_TW.shape[1])).contiguous()


def _joined(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    columns = [part[:, :width] for part, width in zip(parts, widths, strict=True)]
    return torch.cat(columns, dim=1)
