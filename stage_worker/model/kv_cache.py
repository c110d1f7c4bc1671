"""The memory and layout of one stage's KV cache, in blocks.

The coordinator allocates blocks to sequences; `slot_table.py` keeps the allocation.

Shapes: L layers of the stage, P blocks, C tokens per block, K key/value heads, D head dimension,
T tokens of the step, S tokens read back; 2 is keys, then values; R = 2K.
"""

import math
import mmap
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Blocks = slice | Tensor
"""Consecutive block ids, read without a copy, or any block ids [P'], gathered."""

_CPU_BYTES: Final = 2**30
"""The default on a CPU, whose memory is shared; untouched cache memory is not resident."""

_GPU_SHARE: Final = 0.9
"""Share of a GPU's memory for weights and cache; the rest is for activations and CUDA."""

_GATHER_BYTES = 2 * 2**20
"""About a core's level-2 cache, so that gathered blocks are read before they are evicted."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """One block of one layer: `block_size` tokens' keys and values."""

    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of one block in one layer."""
        elements = self.block_size * 2 * self.num_kv_heads * self.head_dim
        return elements * self.dtype.itemsize

    @property
    def num_gather_blocks(self) -> int:
        """The number of blocks to gather at a time."""
        return max(1, _GATHER_BYTES // self.num_bytes)

    def num_blocks(self, num_tokens: int) -> int:
        """The number of blocks that hold `num_tokens`."""
        return math.ceil(num_tokens / self.block_size)


class LayerCache:
    """One layer's blocks."""

    def __init__(self, blocks_PC2KD: Tensor, gathered_PC2KD: Tensor) -> None:
        self._blocks_PC2KD = blocks_PC2KD
        self._rows_SRD = blocks_PC2KD.flatten(2, 3).flatten(0, 1)
        self._gathered_PC2KD = gathered_PC2KD

    def write(self, rows_T: Tensor, kv_TRD: Tensor) -> None:
        """Stores each token's K keys, then K values; row r is token r % C of block r // C."""
        self._rows_SRD.index_copy_(0, rows_T, kv_TRD)

    @property
    def pages(self) -> Tensor:
        """All blocks, [P, C, 2, K, D]."""
        return self._blocks_PC2KD

    def rows(self, rows_S: Tensor) -> Tensor:
        """Copies of the rows, numbered as in `write`, [S, 2, K, D]."""
        return self._blocks_PC2KD.flatten(0, 1).index_select(0, rows_S)

    def read(self, blocks: Blocks) -> Tensor:
        """The blocks' tokens in order, [S, 2, K, D]; valid until the next `read`."""
        if isinstance(blocks, slice):
            return self._blocks_PC2KD[blocks].flatten(0, 1)
        gathered_PC2KD = self._gathered_PC2KD[: blocks.numel()]
        torch.index_select(self._blocks_PC2KD, 0, blocks, out=gathered_PC2KD)
        return gathered_PC2KD.flatten(0, 1)


class KVCache:
    """All layers' blocks; `max_gather_blocks` limits the block ids of one `read`.

    The memory is zeroed, because padding must not hold NaN, which a mask would not remove.
    """

    def __init__(
        self,
        shape: BlockShape,
        *,
        num_layers: int,
        num_blocks: int,
        max_gather_blocks: int,
        device: torch.device,
    ) -> None:
        block = (shape.block_size, 2, shape.num_kv_heads, shape.head_dim)
        gathered_PC2KD = torch.empty(max_gather_blocks, *block, dtype=shape.dtype, device=device)
        blocks_LPC2KD = _zeros((num_layers, num_blocks, *block), shape.dtype, device)
        self.layers = tuple(LayerCache(layer, gathered_PC2KD) for layer in blocks_LPC2KD)


def default_kv_bytes(device: torch.device, num_sharers: int) -> int:
    """Default bytes of the cache: 1 GiB on a CPU; on a GPU, this worker's share less the weights.

    `num_sharers` is the number of workers that share the device, this one included.
    """
    if device.type == "cpu":
        return _CPU_BYTES
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    ours = int(_GPU_SHARE * total_bytes / num_sharers)
    return max(0, ours - torch.cuda.memory_allocated(device))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeroed memory; on a CPU it becomes resident when touched, which torch.zeros would do."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
