"""Reads one stage's tensors from a checkpoint into plain tensors of the stage's dtype.

Reads exactly the bytes it is asked for, through one small buffer: nothing is mapped, so a stage's
peak memory stays near its share and a file cut short is an error here, not a crash. Knows no
architecture; the names come from `stage_worker/model`.
"""

from collections.abc import Callable, Sequence
from io import FileIO

import torch
from torch import Tensor

from runtime.checkpoint import Checkpoint, TensorInfo
from runtime.errors import CheckpointError

BytesProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in total."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_STORED_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BUFFER_BYTES = 4 * 2**20


class WeightReader:
    """Hands out the tensors of one stage, converted to `dtype` on `device`.

    `prefixes` say which tensors the stage will ask for (one that it reads twice stands twice); they
    make the total that `progress` is told. Raises `CheckpointError` for a tensor that is missing,
    misshapen, cut short or of a dtype that is no float.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        prefixes: Sequence[str],
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: BytesProgress,
    ) -> None:
        self._checkpoint = checkpoint
        self.dtype = dtype
        self.device = device
        self._progress = progress
        self._buffer_U8 = torch.empty(_BUFFER_BYTES, dtype=torch.uint8)
        self._done_bytes = 0
        self._total_bytes = sum(
            info.num_bytes
            for prefix in prefixes
            for name, info in checkpoint.tensors.items()
            if name.startswith(prefix)
        )
        self.loaded_bytes = 0

    def empty(self, *shape: int) -> Tensor:
        """Room for weights that `read_into` fills."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def read(self, name: str, *shape: int) -> Tensor:
        """The tensor `name`, which must have `shape`."""
        out = self.empty(*shape)
        self.read_into(name, out)
        return out

    def read_into(self, name: str, out: Tensor) -> None:
        """Fills the contiguous `out`, whose shape the tensor must have."""
        info = self._checkpoint.tensors.get(name)
        expected = list(out.shape)
        if info is None:
            raise self._error(f"tensor {name} of shape {expected} is missing")
        if list(info.shape) != expected:
            raise self._error(f"tensor {name}: expected shape {expected}, found {list(info.shape)}")
        stored = _STORED_DTYPES.get(info.dtype)
        if stored is None:
            known = ", ".join(_STORED_DTYPES)
            raise self._error(f"tensor {name}: expected one of {known}, found {info.dtype}")
        try:
            with FileIO(info.file) as file:
                file.seek(info.offset)
                self._copy(file, info, stored, out.view(-1))
        except OSError as exc:
            raise self._error(f"tensor {name}: {exc}") from exc
        self.loaded_bytes += out.numel() * out.element_size()

    def _copy(self, file: FileIO, info: TensorInfo, stored: torch.dtype, flat: Tensor) -> None:
        per_buffer = _BUFFER_BYTES // stored.itemsize
        for begin in range(0, flat.numel(), per_buffer):
            target = flat[begin : begin + per_buffer]
            chunk_U8 = self._buffer_U8[: target.numel() * stored.itemsize]
            self._fill(file, info, chunk_U8.numpy().data)
            target.copy_(chunk_U8.view(stored))
            self._done_bytes += chunk_U8.numel()
            self._progress(self._done_bytes, self._total_bytes)

    def _fill(self, file: FileIO, info: TensorInfo, chunk: memoryview) -> None:
        while chunk:
            num_read = file.readinto(chunk)
            if not num_read:
                raise self._error(f"tensor {info.name}: {info.file.name} ends within it")
            chunk = chunk[num_read:]

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(folder=str(self._checkpoint.folder), problem=problem)
