"""Samples tokens and scores prompts from the last stage's hidden states.

All ranks compute logits together, in pieces of bounded size; rank 0 receives them, samples and
follows grammars. `stage_runner.py` has one output head per epoch.

Shapes: T tokens of the step, H hidden size, B rows whose logits are needed, V vocabulary.
"""

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from runtime.errors import TokenOutOfVocabularyError
from runtime.protocol.step import SampledToken, ScoredToken, Step
from stage_worker.collectives.group import RankGroup
from stage_worker.execution.attention_metadata import StepMetadata
from stage_worker.execution.slot_table import SlotTable
from stage_worker.model.decoder import Decoder
from stage_worker.sampling.grammar import GrammarMatchers, GrammarTokenizer
from stage_worker.sampling.prompt_logprobs import PromptTarget, chunk_targets, score
from stage_worker.sampling.sampler import SamplingInput, sample

# Elements per piece; the logits of many rows can exceed the stage's weights in size.
_MAX_LOGITS: Final = 2**24


class OutputHead:
    """Samples and scores for the slots of one epoch."""

    def __init__(
        self, decoder: Decoder, slots: SlotTable, tokenizer: GrammarTokenizer, group: RankGroup
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._group = group
        self._vocab_size = tokenizer.vocab_size
        self._matchers = GrammarMatchers(tokenizer)

    def targets(self, step: Step) -> tuple[PromptTarget, ...]:
        """The prompt tokens that the step's rows score.

        Raises `TokenOutOfVocabularyError` and what `chunk_targets` raises, on all ranks alike.
        """
        targets: list[PromptTarget] = []
        row = 0
        for chunk in step.chunks:
            targets += chunk_targets(chunk, row, self._slots[chunk.slot].sampling)
            row += len(chunk.token_ids)
        largest = max((target.token_id for target in targets), default=0)
        if largest >= self._vocab_size:
            raise TokenOutOfVocabularyError(token_id=largest, vocab_size=self._vocab_size)
        return tuple(targets)

    def apply(self, step: Step) -> None:
        """Applies the step's slot changes to the grammar matchers; on rank 0."""
        self._matchers.apply(step)

    def score(
        self, hidden_TH: Tensor, targets: tuple[PromptTarget, ...]
    ) -> tuple[ScoredToken, ...]:
        """The scored prompt tokens, on rank 0; empty on the others."""
        rows_B = torch.tensor([target.row for target in targets], device=hidden_TH.device)
        scored: list[ScoredToken] = []
        for piece, logits_BV in self._logits(hidden_TH, rows_B):
            scored += score(logits_BV, targets[piece])
        return tuple(scored)

    def sample(self, hidden_TH: Tensor, metadata: StepMetadata) -> tuple[SampledToken, ...]:
        """One token for each chunk that samples, on rank 0; empty on the others."""
        requests = [
            SamplingInput(
                chunk.slot,
                self._slots[chunk.slot].sampling,
                position=chunk.position + len(chunk.token_ids),
                token_ids=self._slots[chunk.slot].token_ids,
                matcher=self._matchers.get(chunk.slot),
            )
            for chunk in metadata.sampled_chunks
        ]
        sampled: list[SampledToken] = []
        for piece, logits_BV in self._logits(hidden_TH, metadata.sampled_rows):
            sampled += sample(logits_BV, requests[piece])
        return tuple(sampled)

    def _logits(self, hidden_TH: Tensor, rows_B: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yields pieces of rows and their logits, on rank 0. All ranks must exhaust it."""
        num_rows = max(1, _MAX_LOGITS // self._vocab_size)
        for begin in range(0, len(rows_B), num_rows):
            piece = slice(begin, begin + num_rows)
            logits_BV = self._decoder.logits(hidden_TH[rows_B[piece]], self._group)
            if logits_BV is not None:
                yield piece, logits_BV
