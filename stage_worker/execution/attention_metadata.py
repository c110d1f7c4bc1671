"""Builds the index tensors of one step, which every layer uses.

Turns a step's chunks and the slots' block tables into positions, cache rows, attention calls and
the rows to sample from. Reads the slot table and changes nothing.

Shapes: T tokens of the step, A its chunks, B sequences of one decode batch, P blocks of a sequence,
S tokens of context, t tokens of one chunk.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from runtime.protocol.step import SequenceChunk, Step
from stage_worker.execution.slot_table import SlotTable
from stage_worker.execution.spans import Span, StepSlice, split_step, step_spans
from stage_worker.model.interleaving import SliceMetadata
from stage_worker.model.kv_cache import Blocks, BlockShape
from stage_worker.model.paged_attention import AttentionMetadata, DecodeBatch, PrefillChunk
from stage_worker.model.varlen_attention import AttentionKernel, VarlenBatch


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """The index tensors of one step: one slice, or two that are computed alternately.

    `sampled_rows` are the last rows of the chunks in `sampled_chunks`, in order.
    """

    slices: tuple[SliceMetadata, ...]
    sampled_rows: Tensor
    sampled_chunks: tuple[SequenceChunk, ...]
    is_decode_only: bool


class StepMetadataBuilder:
    """Builds the metadata of one stage's steps in one epoch."""

    def __init__(
        self,
        slots: SlotTable,
        shape: BlockShape,
        windows: Collection[int | None],
        device: torch.device,
        kernel: AttentionKernel = AttentionKernel.SDPA,
        min_split_tokens: int | None = None,
    ) -> None:
        """Steps of `min_split_tokens` or more are split into two slices; None: no step is."""
        self._slots = slots
        self._shape = shape
        self._windows = windows
        self._device = device
        self._kernel = kernel
        self._min_split_tokens = min_split_tokens

    def build(self, step: Step) -> StepMetadata:
        """The metadata of a step with tokens, after `SlotTable.apply`."""
        spans = step_spans(step)
        positions_T, cache_rows_T = self._positions_and_rows(step.chunks)
        sampled = [
            (chunk, span) for chunk, span in zip(step.chunks, spans, strict=True) if chunk.sample
        ]
        last_rows = [span.row + span.num_tokens - 1 for _, span in sampled]
        return StepMetadata(
            slices=tuple(
                self._slice(part, positions_T, cache_rows_T)
                for part in split_step(spans, self._min_split_tokens)
            ),
            sampled_rows=torch.tensor(last_rows, dtype=torch.int64, device=self._device),
            sampled_chunks=tuple(chunk for chunk, _ in sampled),
            is_decode_only=all(span.num_tokens == 1 for span in spans),
        )

    def _slice(self, part: StepSlice, positions_T: Tensor, cache_rows_T: Tensor) -> SliceMetadata:
        rows_T = cache_rows_T[part.rows].to(self._device)
        return SliceMetadata(
            part.rows,
            positions_T[part.rows].to(self._device),
            {window: self._attention(part.spans, window, rows_T) for window in self._windows},
        )

    def _positions_and_rows(self, chunks: tuple[SequenceChunk, ...]) -> tuple[Tensor, Tensor]:
        """Each token's position in its sequence and its row in the cache, both [T]."""
        counts_A = torch.tensor([len(chunk.token_ids) for chunk in chunks])
        slots_A = torch.tensor([chunk.slot for chunk in chunks])
        starts_A = (
            torch.tensor([chunk.position for chunk in chunks]) - counts_A.cumsum(0) + counts_A
        )
        slots_T = slots_A.repeat_interleave(counts_A)
        positions_T = starts_A.repeat_interleave(counts_A).add_(torch.arange(len(slots_T)))
        size = self._shape.block_size
        blocks_T = self._slots.tables_BP[slots_T, positions_T // size]
        return positions_T, blocks_T * size + positions_T % size

    def _windowed(self, spans: tuple[Span, ...], window: int | None) -> tuple[Span, ...]:
        if window is None or all(span.num_context <= window for span in spans):
            return spans
        windowed = []
        for span in spans:
            num_unseen = max(0, span.num_context - span.num_tokens + 1 - window)
            num_skipped = num_unseen // self._shape.block_size
            num_context = span.num_context - num_skipped * self._shape.block_size
            windowed.append(
                replace(span, num_context=num_context, num_skipped=num_skipped, window=window)
            )
        return tuple(windowed)

    def _attention(
        self, spans: tuple[Span, ...], window: int | None, cache_rows_T: Tensor
    ) -> AttentionMetadata:
        if self._kernel is not AttentionKernel.SDPA:
            return AttentionMetadata(cache_rows_T, varlen=self._varlen_batch(spans, window))
        spans = self._windowed(spans, window)
        prefills = tuple(self._prefill(span) for span in spans if span.num_tokens > 1)
        return AttentionMetadata(cache_rows_T, self._decode_batches(spans), prefills)

    def _varlen_batch(self, spans: tuple[Span, ...], window: int | None) -> VarlenBatch:
        counts_A = torch.tensor([span.num_tokens for span in spans])
        contexts_A = torch.tensor([span.num_context for span in spans])
        slots_A = torch.tensor([span.slot for span in spans])
        max_context = int(contexts_A.max())
        tables_AP = self._slots.tables_BP[slots_A, : self._shape.num_blocks(max_context)]
        is_gathered = self._kernel is AttentionKernel.GATHERED
        return VarlenBatch(
            starts=self._int32(_bounds(counts_A)),
            contexts_A=self._int32(contexts_A),
            tables_AP=self._int32(tables_AP),
            max_tokens=int(counts_A.max()),
            max_context=max_context,
            window=window,
            rows_S=self._context_rows(tables_AP, contexts_A) if is_gathered else None,
            context_starts=self._int32(_bounds(contexts_A)) if is_gathered else None,
        )

    def _context_rows(self, tables_AP: Tensor, contexts_A: Tensor) -> Tensor:
        """The cache rows of the sequences' contexts, concatenated, [S]."""
        size = self._shape.block_size
        places_1X = torch.arange(tables_AP.shape[1] * size)[None]
        rows_AX = tables_AP.repeat_interleave(size, dim=1) * size + places_1X % size
        return rows_AX[places_1X < contexts_A[:, None]].to(self._device, non_blocking=True)

    def _int32(self, values: Tensor) -> Tensor:
        return values.to(self._device, torch.int32, non_blocking=True)

    def _decode_batches(self, spans: tuple[Span, ...]) -> tuple[DecodeBatch, ...]:
        """Groups decodes by context length, longest first, to bound padding and gathered memory.

        A batch ends where padding would double a context, or where its gathered blocks would
        exceed the processor's level-2 cache.
        """
        decodes = sorted((s for s in spans if s.num_tokens == 1), key=lambda s: -s.num_context)
        batches: list[list[Span]] = []
        for span in decodes:
            if batches:
                num_blocks = self._shape.num_blocks(batches[-1][0].num_context)
                fits = (len(batches[-1]) + 1) * num_blocks <= self._shape.num_gather_blocks
                if fits and 2 * self._shape.num_blocks(span.num_context) >= num_blocks:
                    batches[-1].append(span)
                    continue
            batches.append([span])
        return tuple(self._decode_batch(batch) for batch in batches)

    def _decode_batch(self, spans: list[Span]) -> DecodeBatch:
        rows_B = torch.tensor([span.row for span in spans], device=self._device)
        if len(spans) == 1 and not spans[0].num_hidden:
            blocks, num_context = self._blocks(spans[0]), spans[0].num_context
            return DecodeBatch(rows_B, blocks, num_context, mask_B11S=None)
        num_blocks = self._shape.num_blocks(spans[0].num_context)
        num_context = num_blocks * self._shape.block_size
        lengths_B1 = torch.tensor([[span.num_context] for span in spans])
        places_S = torch.arange(num_context)
        is_hidden_BS = places_S >= lengths_B1
        if spans[0].window is not None:
            is_hidden_BS |= places_S < torch.tensor([[span.num_hidden] for span in spans])
        mask_BS = torch.zeros(len(spans), num_context, dtype=self._shape.dtype)
        mask_BS.masked_fill_(is_hidden_BS, -math.inf)
        return DecodeBatch(
            rows_B,
            self._tables(spans, num_blocks).flatten().to(self._device),
            num_context,
            mask_B11S=mask_BS[:, None, None].to(self._device),
        )

    def _tables(self, spans: list[Span], num_blocks: int) -> Tensor:
        """The spans' block ids, [B, P], each row padded with arbitrary ids."""
        slots_B = torch.tensor([span.slot for span in spans])
        if spans[0].window is None:
            return self._slots.tables_BP[slots_B, :num_blocks]
        skipped_B1 = torch.tensor([[span.num_skipped] for span in spans])
        places_BP = skipped_B1 + torch.arange(num_blocks)
        places_BP.clamp_(max=self._slots.tables_BP.shape[1] - 1)
        return self._slots.tables_BP[slots_B[:, None], places_BP]

    def _prefill(self, span: Span) -> PrefillChunk:
        mask_tS = None
        if span.num_context > span.num_tokens or span.num_hidden:
            size = (span.num_tokens, span.num_context)
            full_tS = torch.full(size, -math.inf, dtype=self._shape.dtype, device=self._device)
            first_row = span.num_context - span.num_tokens
            mask_tS = full_tS.triu(first_row + 1)
            if span.window is not None:
                mask_tS += full_tS.tril_(first_row - span.window)
        rows = slice(span.row, span.row + span.num_tokens)
        return PrefillChunk(rows, self._blocks(span), span.num_context, mask_tS)

    def _blocks(self, span: Span) -> Blocks:
        num_blocks = span.num_skipped + self._shape.num_blocks(span.num_context)
        ids = self._slots[span.slot].block_ids[span.num_skipped : num_blocks]
        if all(after == before + 1 for before, after in pairwise(ids)):
            return slice(ids[0], ids[-1] + 1)
        return torch.tensor(ids, device=self._device)


def _bounds(counts_A: Tensor) -> Tensor:
    """The begin of each interval and the end of the last, [A + 1]."""
    return F.pad(counts_A.cumsum(0), (1, 0))
