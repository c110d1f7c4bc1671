"""The interface of batching policies, and the read-only views that they receive.

A policy decides how much work a microbatch carries. It never accesses slots, blocks or queues: the
scheduler applies its choices as far as limits and memory allow.
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
        """The request."""

    @property
    def sequence_id(self) -> int:
        """Its id, given by the caller."""

    @property
    def first_token_due(self) -> float:
        """The deadline of its first token in seconds, by default without a client's target."""

    @property
    def num_sent(self) -> int:
        """Positions before the next token: the context of a decode or chunk."""

    @property
    def num_unsent(self) -> int:
        """Known tokens that are not yet sent; 1 for a decode."""

    @property
    def num_generated(self) -> int:
        """Tokens reported so far."""

    @property
    def first_token_at(self) -> float | None:
        """When its first token was reported, in seconds; None before."""


class MicrobatchView(Protocol):
    """A microbatch draft, read only."""

    @property
    def num_tokens(self) -> int:
        """Its rows so far."""

    @property
    def work(self) -> StepWork:
        """The work that it requires of a stage so far."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """The scheduler's state before a microbatch is made; `now` is in seconds.

    `ready` are the decodes that may run, the longest waiting first; `num_decoding` counts those and
    the ones with a token in flight. `in_flight` are the steps without a result. `waiting` is the
    head of the queue in order of admission; the first `num_admissible` of them probably fit into
    memory to their ends, and the others wait for memory regardless of the policy.
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
        """Whether prompt tokens can be computed now."""
        return bool(self.prefilling) or self.num_admissible > 0

    @property
    def num_steps_in_flight(self) -> int:
        """Number of steps without a result."""
        return len(self.in_flight)


class Policy(Protocol):
    """Decides how much work the next microbatch carries. Stateful, but has no other inputs.

    It learns from `complete`, called once per step, and `observe`, called once per step and stage,
    in any order between the two.
    """

    def start_epoch(self, limits: SchedulerLimits) -> None:
        """Begins a new epoch: nothing is in flight, and the stages may be different."""

    def num_steps_in_flight(self, view: SchedulerView) -> int:
        """Maximum number of steps in flight, including the next one; 1 means no split."""

    def choose_decodes(self, view: SchedulerView) -> Sequence[int]:
        """The ids of the `view.ready` decodes for the next microbatch, in order."""

    def chunk_tokens(
        self, view: SchedulerView, microbatch: MicrobatchView, sequence: SequenceView
    ) -> int:
        """The number of a sequence's unsent prompt tokens to add to the microbatch.

        Called after `choose_decodes`, in order of urgency; 0 closes the microbatch.
        """

    def complete(self, sent: SentStep, now: float) -> None:
        """Called with each step's result from the last stage."""

    def observe(self, record: StageRecord, sent: SentStep) -> None:
        """Called with each stage's timing of a step."""

    def snapshot(self) -> PolicySnapshot:
        """The policy's current state."""


def even_share(view: SchedulerView, num_microbatches: int) -> int:
    """The number of ready decodes for the next microbatch so that all microbatches are even.

    At most ceil(decoding / microbatches). Ready decodes are also spread over the microbatches that
    can still be sent, so 6 over 4 become 2, 2, 1, 1 and not 2, 2, 2, 0. Decodes of one
    microbatch become ready together, so they stay together until the shares change.
    """
    num_free = max(1, num_microbatches - view.num_steps_in_flight)
    return min(-(-len(view.ready) // num_free), -(-view.num_decoding // num_microbatches))
