"""Runs decode steps as CUDA graphs: one replay replaces hundreds of kernel launches.

A graph is bound to the memory that it was captured with. There is one graph for each of a few batch
sizes (buckets), and all use the same input buffers; a step is padded to the next bucket. Padded
rows write into a scratch block that no sequence has, and their outputs are discarded.

Shapes: T tokens of the step, one of each sequence; B the bucket; H hidden size; P blocks of the
longest sequence that is served.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stage_worker.collectives.group import SINGLE_RANK
from stage_worker.execution.attention_metadata import StepMetadata
from stage_worker.model.decoder import Decoder
from stage_worker.model.interleaving import SliceMetadata
from stage_worker.model.kv_cache import LayerCache
from stage_worker.model.paged_attention import AttentionMetadata
from stage_worker.model.varlen_attention import VarlenBatch

_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NUM_WARM_UPS = 2
"""Runs before a capture, because a kernel's first runs may allocate or select an algorithm."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The dimensions of the graphs; `scratch_block` is a cache block that no sequence has."""

    max_sequences: int
    max_model_len: int
    max_blocks: int
    block_size: int
    scratch_block: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def buckets(self) -> tuple[int, ...]:
        """The batch sizes of the graphs, ascending."""
        return tuple(size for size in _BUCKETS if size < 2 * self.max_sequences)


class DecodeGraphs:
    """The graphs over one epoch's cache, each captured at its first use."""

    def __init__(
        self,
        decoder: Decoder,
        caches: Sequence[LayerCache],
        windows: Collection[int | None],
        shape: GraphShape,
    ) -> None:
        self._decoder = decoder
        self._caches = caches
        self._shape = shape
        self._inputs = _Inputs(shape, windows)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def covers(self, metadata: StepMetadata) -> bool:
        """Whether the step has only decodes, and no more than the largest graph."""
        buckets = self._shape.buckets
        num_tokens = sum(len(part.positions_T) for part in metadata.slices)
        return bool(buckets) and metadata.is_decode_only and num_tokens <= buckets[-1]

    def run(self, hidden_TH: Tensor, metadata: StepMetadata) -> Tensor:
        """The result of `Decoder.forward` for a covered step, [T, H]."""
        num_tokens = len(hidden_TH)
        bucket = next(size for size in self._shape.buckets if size >= num_tokens)
        self._inputs.fill(hidden_TH, metadata, bucket)
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket)
        graph, hidden_BH = self._graphs[bucket]
        graph.replay()
        # The next replay overwrites this output, which may still be being copied.
        return hidden_BH[:num_tokens].clone()

    def _capture(self, bucket: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Warms up on a side stream, then captures, as torch's notes on CUDA graphs require."""
        stream = torch.cuda.Stream(self._shape.device)
        stream.wait_stream(torch.cuda.current_stream(self._shape.device))
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UPS):
                self._forward(bucket)
        torch.cuda.current_stream(self._shape.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # A global capture would forbid the copies that other threads make meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            hidden_BH = self._forward(bucket)
        return graph, hidden_BH

    def _forward(self, bucket: int) -> Tensor:
        inputs = self._inputs
        part = SliceMetadata(
            slice(0, bucket), inputs.positions_B[:bucket], inputs.attention_metadata(bucket)
        )
        return self._decoder.forward(inputs.hidden_BH[:bucket], (part,), self._caches, SINGLE_RANK)


class _Inputs:
    """The input buffers of all graphs, sized for the largest bucket."""

    def __init__(self, shape: GraphShape, windows: Collection[int | None]) -> None:
        size, device = max(shape.buckets, default=0), shape.device
        self.hidden_BH = torch.zeros(size, shape.hidden_size, dtype=shape.dtype, device=device)
        self.positions_B = torch.zeros(size, dtype=torch.int64, device=device)
        self._rows_B = torch.zeros(size, dtype=torch.int64, device=device)
        self._contexts_B = torch.zeros(size, dtype=torch.int32, device=device)
        self._tables_BP = torch.zeros(size, shape.max_blocks, dtype=torch.int32, device=device)
        self._starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        self._shape = shape
        self._windows = windows

    def fill(self, hidden_TH: Tensor, metadata: StepMetadata, bucket: int) -> None:
        """Copies the step's inputs and pads them to the bucket with scratch rows."""
        num_tokens, scratch = len(hidden_TH), self._shape.scratch_block
        (part,) = metadata.slices
        attention = next(iter(part.attention.values()))
        batch = attention.varlen
        assert batch is not None
        self.hidden_BH[:num_tokens] = hidden_TH
        self.positions_B[:num_tokens] = part.positions_T
        self._rows_B[:num_tokens] = attention.cache_rows_T
        self._contexts_B[:num_tokens] = batch.contexts_A
        self._tables_BP[:num_tokens, : batch.tables_AP.shape[1]] = batch.tables_AP
        padding = slice(num_tokens, bucket)
        self.hidden_BH[padding] = 0
        self.positions_B[padding] = 0
        self._rows_B[padding] = scratch * self._shape.block_size
        self._contexts_B[padding] = 1
        self._tables_BP[padding, 0] = scratch

    def attention_metadata(self, bucket: int) -> Mapping[int | None, AttentionMetadata]:
        """Attention metadata over these buffers, one for each window."""
        return {
            window: AttentionMetadata(
                self._rows_B[:bucket],
                varlen=VarlenBatch(
                    starts=self._starts[: bucket + 1],
                    contexts_A=self._contexts_B[:bucket],
                    tables_AP=self._tables_BP[:bucket],
                    max_tokens=1,
                    max_context=self._shape.max_model_len,
                    window=window,
                ),
            )
            for window in self._windows
        }
