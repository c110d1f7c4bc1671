"""What the last stage makes of its hidden states: sampled tokens and scored prompts.

All ranks of the stage compute logits together, so many rows at a time that memory stays bounded;
rank 0 gets them, and follows grammars. Owned by `stage.py`, one for each epoch.

Shapes: T tokens of the step, H hidden size, B rows that logits are wanted of, V vocabulary.
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

# In elements, at a time: logits of many rows would take more memory than the stage's weights.
_MAX_LOGITS: Final = 2**24


class OutputHead:
    """Samples and scores for one epoch's slots."""

    def __init__(
        self, decoder: Decoder, slots: SlotTable, tokenizer: GrammarTokenizer, group: RankGroup
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._group = group
        self._vocab_size = tokenizer.vocab_size
        self._matchers = GrammarMatchers(tokenizer)

    def targets(self, step: Step) -> tuple[PromptTarget, ...]:
        """What the step's rows are to score; raises what `chunk_targets` does.

        Likewise `TokenOutOfVocabularyError`. It computes nothing: all ranks refuse alike.
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
        """Takes the slots' changes over, on rank 0."""
        self._matchers.apply(step)

    def score(
        self, hidden_TH: Tensor, targets: tuple[PromptTarget, ...]
    ) -> tuple[ScoredToken, ...]:
        """The prompts' tokens that the rows predict; nothing on other ranks than 0."""
        rows_B = torch.tensor([target.row for target in targets], device=hidden_TH.device)
        scored: list[ScoredToken] = []
        for piece, logits_BV in self._logits(hidden_TH, rows_B):
            scored += score(logits_BV, targets[piece])
        return tuple(scored)

    def sample(self, hidden_TH: Tensor, plan: StepMetadata) -> tuple[SampledToken, ...]:
        """A token for each chunk that wants one; nothing on other ranks than 0."""
        draws = [
            SamplingInput(
                chunk.slot,
                self._slots[chunk.slot].sampling,
                position=chunk.position + len(chunk.token_ids),
                token_ids=self._slots[chunk.slot].token_ids,
                matcher=self._matchers.get(chunk.slot),
            )
            for chunk in plan.sampled_chunks
        ]
        sampled: list[SampledToken] = []
        for piece, logits_BV in self._logits(hidden_TH, plan.sampled_rows):
            sampled += sample(logits_BV, draws[piece])
        return tuple(sampled)

    def _logits(self, hidden_TH: Tensor, rows_B: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Piece by piece; every rank has to go through all of them."""
        num_rows = max(1, _MAX_LOGITS // self._vocab_size)
        for begin in range(0, len(rows_B), num_rows):
            piece = slice(begin, begin + num_rows)
            logits_BV = self._decoder.logits(hidden_TH[rows_B[piece]], self._group)
            if logits_BV is not None:
                yield piece, logits_BV
