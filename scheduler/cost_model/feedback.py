"""The feedback records from which policies learn: a step's work, its sending, stages' timings."""

from dataclasses import dataclass
from typing import NamedTuple

from runtime.protocol.step import StageTiming


class StepWork(NamedTuple):
    """The work of one microbatch; a tuple for speed, because planning compares many.

    A chunk of one token counts as a decode: it costs the same, whatever its token's origin.
    `prefill_attention` is the sum of 2Lx + x^2 over longer chunks (L positions of context, x
    tokens), which is twice the number of attention pairs; `decode_context` is the sum of the
    positions before each decode.
    """

    num_tokens: int = 0
    num_decodes: int = 0
    prefill_attention: int = 0
    decode_context: int = 0
    num_sequences: int = 0
    num_sampled: int = 0

    @property
    def has_prompts(self) -> bool:
        """Whether any chunk is longer than one token."""
        return self.num_tokens > self.num_decodes


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step that was sent at `sent_at` seconds.

    `num_others` steps were in flight then; `is_full` is set if the policy allowed no more.
    """

    number: int
    work: StepWork
    sent_at: float
    num_others: int
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage's timing of one step."""

    step: int
    stage: int
    timing: StageTiming
