"""The vocabulary of feedback: what a step carried, when it went out, and what each stage measured.

Policies learn from these records alone. Nothing here decides or measures.
"""

from dataclasses import dataclass
from typing import NamedTuple

from runtime.protocol.step import StageTiming


class StepWork(NamedTuple):
    """What one microbatch asks of a stage; a tuple, because plans are made by comparing many.

    A chunk of one token counts as a decode: it costs the same, wherever its token comes from.
    `prefill_attention` is the sum of 2Lx + x^2 over longer chunks (L positions of context, x
    tokens), which is twice the pairs that attention looks at; `decode_context` is the sum of the
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
    """A step that went out at `sent_at` seconds.

    `num_others` were in flight then; `is_full` says that with it as many are as the policy allows.
    """

    number: int
    work: StepWork
    sent_at: float
    num_others: int
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class StageRecord:
    """What one stage measured of one step."""

    step: int
    stage: int
    timing: StageTiming
