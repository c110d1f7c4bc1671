"""Runs steps on one rank of a stage: its weights, its KV cache, its slots.

All calls are on the device's thread. Inputs are steps and hidden states, outputs hidden states or
sampled tokens; streams, epoch names and clocks are elsewhere. If the stage has several ranks, this
rank receives and sends its interval of the hidden dimension; collectives use the epoch's
`RankGroup`.

Shapes: T tokens of the step, H hidden size, W this rank's interval of it, B rows to sample from.
"""

import torch
from torch import Tensor

from runtime.checkpoints.checkpoint import Checkpoint
from runtime.errors import (
    FrameError,
    NotEnoughMemoryError,
    StagemeshError,
    TokenOutOfVocabularyError,
)
from runtime.model_config.model_config import ModelConfig, load_model_config
from runtime.model_config.tensor_parallel import RankShares
from runtime.protocol.step import Step
from stage_worker.collectives.group import SINGLE_RANK, RankGroup
from stage_worker.execution.attention_metadata import StepMetadataBuilder
from stage_worker.execution.cuda_graphs import DecodeGraphs, GraphShape
from stage_worker.execution.output_head import OutputHead
from stage_worker.execution.slot_table import SlotLimits, SlotTable
from stage_worker.execution.stage_spec import StageOutput, StageSpec
from stage_worker.model.decoder import Decoder, LayerRange
from stage_worker.model.kv_cache import BlockShape, KVCache, default_kv_bytes
from stage_worker.model.varlen_attention import AttentionKernel, choose_kernel
from stage_worker.model.weights import DTYPES, BytesProgress, read_measured
from stage_worker.sampling.grammar import GrammarTokenizer
from stage_worker.sampling.prompt_logprobs import PromptTarget


class StageRunner:
    """Loaded weights and, after `open_epoch`, a KV cache that steps fill."""

    def __init__(
        self,
        spec: StageSpec,
        config: ModelConfig,
        decoder: Decoder,
        weights_bytes: int,
        tokenizer: GrammarTokenizer,
    ) -> None:
        self.spec = spec
        self.config = config
        self.weights_bytes = weights_bytes
        self._decoder = decoder
        self._shares = RankShares.of(config, spec.rank, spec.tp_size)
        self._dtype = DTYPES[spec.dtype]
        self.device = torch.device(spec.device)
        self._block_shape = BlockShape(
            spec.block_size, len(self._shares.kv_heads), config.head_dim, self._dtype
        )
        layers = config.layers[spec.first_layer : spec.first_layer + spec.num_layers]
        self._windows = frozenset(layer.window for layer in layers)
        self._slots = SlotTable(SlotLimits(0, 0, spec.block_size, spec.max_model_len))
        self._tokenizer = tokenizer
        self._head: OutputHead | None = None
        self._metadata_builder: StepMetadataBuilder | None = None
        self._cache: KVCache | None = None
        self._graphs: DecodeGraphs | None = None
        # Routing to experts makes shapes depend on data, and a graph's shapes are fixed.
        is_dense = not any(layer.is_sparse for layer in layers)
        self._can_capture = is_dense and spec.tp_size == 1
        self._group: RankGroup = SINGLE_RANK

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, spec: StageSpec, progress: BytesProgress
    ) -> "StageRunner":
        """Reads this rank's share of the stage's tensors; `progress` gets done and total bytes.

        Before any tensor is read, raises what `load_model_config` raises, `TooManyRanksError`, and
        `CheckpointError` for a tensor that is missing or has the wrong shape.
        """
        torch.set_num_threads(spec.num_threads)
        config = load_model_config(checkpoint.folder)
        part = LayerRange(spec.first_layer, spec.num_layers, spec.is_first, spec.is_last)
        shares = RankShares.of(config, spec.rank, spec.tp_size)
        with torch.inference_mode():
            decoder, weights_bytes = read_measured(
                checkpoint,
                lambda reader: Decoder.load(reader, config, part, shares, spec.max_model_len),
                dtype=DTYPES[spec.dtype],
                device=torch.device(spec.device),
                progress=progress,
            )
        tokenizer = GrammarTokenizer(checkpoint.folder, config.vocab_size, config.eos_token_ids)
        return cls(spec, config, decoder, weights_bytes, tokenizer)

    @property
    def num_slots_used(self) -> int:
        """Number of open slots."""
        return self._slots.num_slots_used

    @property
    def num_blocks_used(self) -> int:
        """Number of KV blocks that open slots hold."""
        return self._slots.num_blocks_used

    def kv_block_capacity(self) -> int:
        """The number of KV blocks that fit; raises `NotEnoughMemoryError` if none does."""
        available_bytes = self.spec.kv_memory_bytes or default_kv_bytes(
            self.device, self.spec.num_sharers
        )
        block_bytes = self._block_shape.num_bytes * self.spec.num_layers
        if available_bytes < block_bytes:
            raise NotEnoughMemoryError(
                needed_bytes=block_bytes, available_bytes=available_bytes, what="one KV block"
            )
        return available_bytes // block_bytes

    def block_table_bytes(self, max_sequences: int) -> int:
        """Bytes that `open_epoch` allocates for the block tables of `max_sequences`."""
        max_blocks = self._block_shape.num_blocks(self.spec.max_model_len)
        return max_sequences * max_blocks * torch.int64.itemsize

    def open_epoch(
        self, num_blocks: int, max_sequences: int, group: RankGroup = SINGLE_RANK
    ) -> None:
        """Resets slots, block tables and cache; required before the first `run`.

        `group` is this rank's end of the epoch's rank group; the caller closes it.
        """
        self._group = group
        spec, shape = self.spec, self._block_shape
        limits = SlotLimits(max_sequences, num_blocks, spec.block_size, spec.max_model_len)
        self._slots = SlotTable(limits)
        if spec.is_last:
            self._head = OutputHead(self._decoder, self._slots, self._tokenizer, group)
        # Frees the old cache before the new one is allocated.
        self._graphs = self._cache = None
        kernel = choose_kernel(
            shape,
            len(self._shares.heads),
            self.device,
            has_soft_cap=self.config.attention_soft_cap is not None,
        )
        self._metadata_builder = StepMetadataBuilder(
            self._slots, shape, self._windows, self.device, kernel, group.min_split_tokens
        )
        # One block more than the coordinator allocates, for rows that pad a graph.
        uses_graphs = kernel is AttentionKernel.PAGED and self._can_capture
        self._cache = KVCache(
            shape,
            num_layers=spec.num_layers,
            num_blocks=num_blocks + uses_graphs,
            max_gather_blocks=max(shape.num_gather_blocks, shape.num_blocks(spec.max_model_len)),
            device=self.device,
        )
        if uses_graphs:
            self._graphs = self._make_graphs(self._cache, num_blocks, max_sequences)

    @torch.inference_mode()
    def run(self, step: Step, hidden_TW: Tensor | None) -> StageOutput:
        """Computes a step; `hidden_TW` is the previous stage's output, None on the first stage.

        Before anything is computed, raises what `SlotTable.apply` and `RankGroup.agree` raise,
        `TokenOutOfVocabularyError` on the first stage, and `FrameError` for hidden states of the
        wrong dtype or shape. The computation may raise `NonFiniteLogitsError`. Any error ends the
        epoch.
        """
        targets = self._accept(step, hidden_TW)
        if not step.chunks:
            return StageOutput(None)
        assert self._metadata_builder is not None
        assert self._cache is not None
        metadata = self._metadata_builder.build(step)
        group = self._group
        if hidden_TW is None:
            token_ids = [token for chunk in step.chunks for token in chunk.token_ids]
            hidden_TH = self._decoder.embed(torch.tensor(token_ids, device=self.device), group)
        else:
            hidden_TH = self._decoder.gather_hidden(hidden_TW, group)
        if self._graphs is not None and self._graphs.covers(metadata):
            hidden_TH = self._graphs.run(hidden_TH, metadata)
        else:
            hidden_TH = self._decoder.forward(hidden_TH, metadata.slices, self._cache.layers, group)
        head = self._head
        if head is None:
            interval = self._shares.hidden
            return StageOutput(hidden_TH[:, interval.start : interval.stop])
        scored = head.score(hidden_TH, targets)
        return StageOutput(None, head.sample(hidden_TH, metadata), scored)

    def _make_graphs(self, cache: KVCache, num_blocks: int, max_sequences: int) -> DecodeGraphs:
        spec = self.spec
        shape = GraphShape(
            max_sequences=max_sequences,
            max_model_len=spec.max_model_len,
            max_blocks=self._block_shape.num_blocks(spec.max_model_len),
            block_size=spec.block_size,
            scratch_block=num_blocks,
            hidden_size=self.config.hidden_size,
            dtype=self._dtype,
            device=self.device,
        )
        return DecodeGraphs(self._decoder, cache.layers, self._windows, shape)

    def _accept(self, step: Step, hidden_TW: Tensor | None) -> tuple[PromptTarget, ...]:
        """Checks and applies the step; all ranks accept it or all refuse it.

        Returns the prompt tokens to score.
        """
        targets: tuple[PromptTarget, ...] = ()
        refusal: StagemeshError | None = None
        try:
            self._slots.apply(step)
            self._check_input(step, hidden_TW)
            if self._head is not None:
                targets = self._head.targets(step)
                if self.spec.rank == 0:
                    self._head.apply(step)
        except StagemeshError as error:
            refusal = error
        self._group.agree(step, refusal)
        return targets

    def _check_input(self, step: Step, hidden_TW: Tensor | None) -> None:
        if self.spec.is_first:
            self._check_tokens(step)
        expected: object = None
        if step.chunks and not self.spec.is_first:
            expected = (self._dtype, (step.num_tokens, len(self._shares.hidden)))
        actual = None if hidden_TW is None else (hidden_TW.dtype, tuple(hidden_TW.shape))
        if actual != expected:
            raise FrameError(what="hidden states", expected=expected, actual=actual)

    def _check_tokens(self, step: Step) -> None:
        vocab_size = self.config.vocab_size
        for chunk in step.chunks:
            token_id = max(chunk.token_ids)
            if token_id >= vocab_size:
                raise TokenOutOfVocabularyError(token_id=token_id, vocab_size=vocab_size)
