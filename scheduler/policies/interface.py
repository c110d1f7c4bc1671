"""What a batching policy sees and what it is asked; every policy stands behind `Policy`.

A policy decides how much work a microbatch carries. It never touches slots, blocks or queues: the
scheduler carries its wishes out as far as limits and memory allow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduler.cost_model.feedback import SentStep, StageRecord, StepWork
from scheduler.limits import SchedulerLimits
from scheduler.observability.snapshot import PolicySnapshot
from scheduler.sequences.sequence import SequenceRequest


class SequenceView(Protocol):
    """A sequence as policies see it, read only."""

    @property
    def request(self) -> SequenceRequest:
        """What was asked for."""

    @property
    def sequence_id(self) -> int:
        """The caller's name of it."""

    @property
    def first_token_due(self) -> float:
        """When its first token is wanted, in seconds, whether its client said so or not."""

    @property
    def num_sent(self) -> int:
        """Positions of it that lie before the next token: the context of a decode or chunk."""

    @property
    def num_unsent(self) -> int:
        """Known tokens still to be computed; 1 for a decode."""

    @property
    def num_generated(self) -> int:
        """Tokens reported so far."""

    @property
    def first_token_at(self) -> float | None:
        """When its first token was reported, in seconds; None before."""


class MicrobatchView(Protocol):
    """A microbatch in the making, read only."""

    @property
    def num_tokens(self) -> int:
        """Rows of it so far."""

    @property
    def work(self) -> StepWork:
        """What it asks of a stage so far."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """The scheduler's state before a microbatch is made; `now` is in seconds.

    `ready` are the decodes that may run, the one that waited longest first; `num_decoding` counts
    those and the ones whose token is in flight. `in_flight` are the steps that are out. `waiting`
    holds those that get a slot first, in that order; the first `num_admissible` of them find
    memory to their ends, by what is known now, and the others wait for that whatever is decided.
    """

    now: float
    limits: SchedulerLimits
    in_flight: Sequence[SentStep]
    num_decoding: int
    num_blocks_free: int
    ready: Sequence[SequenceView]
    prefilling: Sequence[SequenceView]
    waiting: Sequence[SequenceView]
    num_admissible: int

    @property
    def has_prompts(self) -> bool:
        """Whether there are prompt tokens that may be computed now."""
        return bool(self.prefilling) or self.num_admissible > 0

    @property
    def num_steps_in_flight(self) -> int:
        """How many steps are out."""
        return len(self.in_flight)


class Policy(Protocol):
    """Decides how much work the next microbatch carries. Stateful, but reads nothing else.

    What it may learn from is handed to it: `complete` once per step, `observe` once per step and
    stage, in any order between the two.
    """

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """A new epoch begins: nothing is in flight, and the stages may be others."""

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """How many steps may be in flight, the next one included; 1 means no split."""

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """The ids of those of `view.ready` that the next microbatch shall take, in this order."""

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """How many of a sequence's unsent prompt tokens the microbatch shall take besides.

        Asked in the order of urgency; 0 closes the microbatch. `choose_decodes` was asked before.
        """

    def complete(self, sent: SentStep, now: float) -> None:
        """The last stage's result of a step has come."""

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """One stage has told its times of a step."""

    def snapshot(self) -> PolicySnapshot:
        """What the policy thinks at this moment."""


def even_share(view: SchedulerView, num_microbatches: int) -> int:
    """How many ready decodes the next microbatch takes so that all come out even.

    Never above ceil(decoding / microbatches). Ready decodes are also spread over the microbatches
    that can still be sent, so 6 over 4 become 2, 2, 1, 1 and not 2, 2, 2, 0. Decodes of one
    microbatch become ready together, so they stay together until the shares change.
    """
    num_free = max(1, num_microbatches - view.num_steps_in_flight)
    return min(-(-len(view.ready) // num_free), -(-view.num_decoding // num_microbatches))
