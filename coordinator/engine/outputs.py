"""Types that leave an engine: outputs of its sequences, statistics, and requests that move.

An engine reports outputs as data and never holds a client's stream, so that outputs can be
processed in another process.
"""

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from typing import NamedTuple

from runtime.errors import StagemeshError
from scheduler import ScoreEvent, SequenceRequest, TokenEvent


class SequenceStart(NamedTuple):
    """A sequence got a slot; `num_cached_tokens` of its prompt were in the prefix cache."""

    sequence_id: int
    num_cached_tokens: int


class SequenceFailure(NamedTuple):
    """A sequence ended with an error."""

    sequence_id: int
    error: StagemeshError


@dataclass(frozen=True, slots=True)
class EngineOutputs:
    """What happened to sequences at `now`, in the clock's seconds.

    `finished` are ids of sequences that reached their length without a further token; others finish
    or fail with their last token.
    """

    now: float
    started: tuple[SequenceStart, ...] = ()
    scored: tuple[ScoreEvent, ...] = ()
    tokens: tuple[TokenEvent, ...] = ()
    finished: tuple[int, ...] = ()
    failed: tuple[SequenceFailure, ...] = ()


ProcessOutputs = Callable[[EngineOutputs], Iterable[int]]
"""Consumes outputs; returns the ids of sequences whose text reached a stop string."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts at one moment; those of several engines add up.

    `num_requests` are unfinished sequences, running or waiting; `num_logprobs` is the number of
    log-probabilities that they request with each token. `num_prompt_tokens` and
    `num_generated_tokens` are sums since the start.
    """

    num_requests: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_steps_in_flight: int = 0
    num_blocks: int = 0
    num_blocks_used: int = 0
    num_slots_used: int = 0
    num_logprobs: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0

    @classmethod
    def total(cls, stats: "Iterable[EngineStats]") -> "EngineStats":
        """The sum of each count."""
        return cls(*map(sum, zip(*map(astuple, (cls(), *stats)), strict=True)))


@dataclass(frozen=True, slots=True)
class Handover:
    """A request that moves to another replica.

    `token_ids` are its generated tokens, `num_ends` the ends of epochs at which it was running.
    """

    request: SequenceRequest
    token_ids: tuple[int, ...]
    num_ends: int
