"""The types of one step, shared by scheduler, coordinator and stage worker.

A step is one microbatch's pass through a replica. The scheduler makes it, every rank executes it
verbatim. These classes own next to no behaviour; `step_codec.py` and `result_codec.py` turn them
into protobuf and back.

Chunks and tokens exist for every row of every step, so they are named tuples: a frozen
dataclass takes three times as long to make.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

Row = TypeVar("Row", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """The sampling of one slot; `temperature` 0 means greedy, `top_k` 0 means all."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    num_logprobs: int = 0
    # Excluded at positions below `suppressed_until`.
    suppressed_ids: tuple[int, ...] = ()
    suppressed_until: int = 0
    # Presence and frequency count tokens from `num_prompt_tokens` on, repetition all of them.
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    num_prompt_tokens: int = 0
    # (token id, bias of its logit), each token once.
    logit_bias: tuple[tuple[int, float], ...] = ()
    # The grammar of the generated tokens, in llguidance's notation; empty for none.
    grammar: str = ""
    # Not None: prompts are scored, with this number of most likely tokens at each position.
    num_prompt_logprobs: int | None = None

    @property
    def needs_tokens(self) -> bool:
        """Whether sampling depends on the sequence's tokens: the sampling rank then keeps them."""
        return self.has_penalties or bool(self.grammar)

    @property
    def has_penalties(self) -> bool:
        """Whether tokens of the sequence change the logits of equal tokens."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class SlotOpening:
    """A slot that starts to hold a sequence with this step.

    Its KV cache holds `cached_token_ids` already, which fill `cached_block_ids`: blocks that
    earlier steps of the epoch filled with just these tokens and that no step changes again as long
    as a slot has them. The sequence's first chunk begins behind them.
    """

    slot: int
    sampling: SlotSampling
    cached_token_ids: tuple[int, ...] = ()
    cached_block_ids: tuple[int, ...] = ()


class SequenceChunk(NamedTuple):
    """New tokens of one sequence: a prefill chunk, or the one token of a decode.

    `position` is how many tokens of the sequence the KV cache already holds, so it is the position
    of `token_ids[0]`. `new_block_ids` are appended to the slot's block table before the chunk runs.
    With `sample` the last stage draws the token that follows `token_ids[-1]`; `next_token_id` is
    that token where it is known and belongs to a prompt that is scored.
    """

    slot: int
    position: int
    token_ids: tuple[int, ...]
    new_block_ids: tuple[int, ...] = ()
    sample: bool = False
    next_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One microbatch. Ranks apply `released_slots`, then `opened_slots`, then `chunks`."""

    number: int
    released_slots: tuple[int, ...] = ()
    opened_slots: tuple[SlotOpening, ...] = ()
    chunks: tuple[SequenceChunk, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The number of rows of the step's activation."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class SampledToken(NamedTuple):
    """The sampled token of one slot; log-probabilities are natural and before temperature.

    `top_ids` and `top_logprobs` hold `num_logprobs` entries, most likely first. With a `problem`
    no token could be sampled, the other fields are unset, and the sequence ends with that reason.
    """

    slot: int
    token_id: int
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a prompt at `position` and its log-probability after all those before it.

    `top_ids` and `top_logprobs` hold `num_prompt_logprobs` entries, most likely first.
    """

    slot: int
    position: int
    token_id: int
    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def make_rows(kind: type[Row], rows: Iterable[tuple[Any, ...]]) -> Iterator[Row]:
    """Makes named tuples from tuples with all of their fields.

    Takes half the time of calling the class for each.
    """
    return map(tuple.__new__, repeat(kind), rows)


@dataclass(frozen=True, slots=True)
class SendTiming:
    """One finished send, from output ready to last frame written; `hidden` overlapped compute."""

    step: int
    seconds: float
    hidden_seconds: float
    num_frames: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class StageTiming:
    """One stage's timing of one step, in seconds.

    `send` is an earlier step's send that has ended since; each is reported once, in order.
    """

    receive_seconds: float = 0.0
    queue_seconds: float = 0.0
    compute_seconds: float = 0.0
    idle_seconds: float = 0.0
    send: SendTiming | None = None


@dataclass(frozen=True, slots=True)
class RankActivity:
    """One rank's activity in an epoch, summed over its steps.

    `wait_seconds` is the part of the compute time spent waiting for the other ranks of its
    stage.
    """

    num_steps: int = 0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    num_bytes_sent: int = 0

    def __add__(self, other: "RankActivity") -> "RankActivity":
        """The sum of both."""
        return RankActivity(
            self.num_steps + other.num_steps,
            self.compute_seconds + other.compute_seconds,
            self.wait_seconds + other.wait_seconds,
            self.num_bytes_sent + other.num_bytes_sent,
        )


@dataclass(frozen=True, slots=True)
class StepResult:
    """The report of rank 0 of one stage about one step.

    `sampled` and `scored` are empty except on the last stage; `scored` is in order for each slot.
    """

    step: int
    sampled: tuple[SampledToken, ...] = ()
    timing: StageTiming = field(default_factory=StageTiming)
    scored: tuple[ScoredToken, ...] = ()
