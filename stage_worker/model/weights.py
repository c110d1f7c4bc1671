"""Reads tensors, or some of their rows or columns, from a checkpoint, converted to one dtype.

Reads exactly the requested bytes, through one small buffer. Nothing is memory-mapped, so a rank's
peak memory stays near its share, and a truncated file raises an error instead of a SIGBUS.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import TypeVar

import torch
from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint, TensorInfo
from runtime.errors import CheckpointError

_T = TypeVar("_T")

BytesProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in total."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_STORED_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BUFFER_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class _Region:
    """Bytes of a tensor's file: runs of `run_bytes`, the first at `begin`, `stride_bytes` apart.

    Complete rows are one run; an interval of columns is one run per row.
    """

    info: TensorInfo
    dtype: torch.dtype
    begin: int
    run_bytes: int
    stride_bytes: int


class WeightReader:
    """Reads the tensors of one rank, converted to `dtype` on `device`.

    On the device "meta" it reads nothing and only counts `read_bytes`, which is the `total_bytes`
    of a reader of the same tensors. Raises `CheckpointError` for a tensor that is missing,
    truncated, of the wrong shape or not of a float dtype.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: BytesProgress,
        total_bytes: int = 0,
    ) -> None:
        self._checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self._progress = progress
        self._buffer_U8 = torch.empty(_BUFFER_BYTES, dtype=torch.uint8)
        self._total_bytes = total_bytes
        self.read_bytes = 0
        self.loaded_bytes = 0

    def empty(self, *shape: int) -> Tensor:
        """An uninitialized tensor for `read_into`."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def read(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, which must have `shape`."""
        out = self.empty(*shape)
        self.read_into(name, out)
        return out

    def read_into(
        self,
        name: str,
        out: Tensor,
        shape: tuple[int, ...] | None = None,
        origin: tuple[int, int] = (0, 0),
    ) -> None:
        """Fills the contiguous `out` from the tensor, which must have `shape`, by default `out`'s.

        The values read begin at the row and the column `origin`.
        """
        region = self._find(name, out, tuple(out.shape) if shape is None else shape, origin)
        if out.is_meta:
            self.read_bytes += out.numel() * region.dtype.itemsize
        else:
            try:
                with FileIO(region.info.file) as file:
                    self._copy(file, region, out.view(-1))
            except OSError as exc:
                raise self._error(f"tensor {name}: {exc}") from exc
        self.loaded_bytes += out.numel() * out.element_size()

    def _find(
        self, name: str, out: Tensor, shape: tuple[int, ...], origin: tuple[int, int]
    ) -> _Region:
        info = self._checkpoint.tensors.get(name)
        if info is None:
            raise self._error(f"tensor {name} of shape {list(shape)} is missing")
        if info.shape != shape:
            problem = f"tensor {name}: expected shape {list(shape)}, found {list(info.shape)}"
            raise self._error(problem)
        stored = _STORED_DTYPES.get(info.dtype)
        if stored is None:
            known = ", ".join(_STORED_DTYPES)
            raise self._error(f"tensor {name}: expected one of {known}, found {info.dtype}")
        row, column = origin
        row_bytes = math.prod(shape[1:]) * stored.itemsize
        run_bytes = math.prod(out.shape[1:]) * stored.itemsize
        begin = info.offset + row * row_bytes + column * stored.itemsize
        if run_bytes == row_bytes:
            run_bytes *= len(out)
        return _Region(info, stored, begin, run_bytes, row_bytes)

    def _copy(self, file: FileIO, region: _Region, flat: Tensor) -> None:
        item_bytes = region.dtype.itemsize
        per_buffer = _BUFFER_BYTES // item_bytes
        for begin in range(0, flat.numel(), per_buffer):
            target = flat[begin : begin + per_buffer]
            chunk_U8 = self._buffer_U8[: target.numel() * item_bytes]
            self._fill(file, region, begin * item_bytes, chunk_U8.numpy().data)
            target.copy_(chunk_U8.view(region.dtype))
            self.read_bytes += chunk_U8.numel()
            self._progress(self.read_bytes, self._total_bytes)

    def _fill(self, file: FileIO, region: _Region, position: int, chunk: memoryview) -> None:
        """Reads the region's bytes from `position` on, counted over its runs."""
        while chunk:
            run, done = divmod(position, region.run_bytes)
            wanted = chunk[: region.run_bytes - done]
            offset = region.begin + run * region.stride_bytes + done
            num_read = os.preadv(file.fileno(), [wanted], offset)
            if not num_read:
                info = region.info
                raise self._error(f"tensor {info.name}: {info.file.name} ends within it")
            chunk = chunk[num_read:]
            position += num_read

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(folder=str(self._checkpoint.folder), problem=problem)


def read_measured(
    checkpoint: Checkpoint,
    load: Callable[[WeightReader], _T],
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: BytesProgress,
) -> tuple[_T, int]:
    """The result of `load` and its bytes in memory; `load` runs twice, first to measure."""
    total_bytes = _measure(checkpoint, load, dtype)
    reader = WeightReader(
        checkpoint, dtype=dtype, device=device, progress=progress, total_bytes=total_bytes
    )
    return load(reader), reader.loaded_bytes


def _measure(checkpoint: Checkpoint, load: Callable[[WeightReader], _T], dtype: torch.dtype) -> int:
    """Bytes that `load` reads. Its tensors are freed before anything is read."""
    meter = WeightReader(
        checkpoint, dtype=dtype, device=torch.device("meta"), progress=lambda done, total: None
    )
    load(meter)
    return meter.read_bytes
