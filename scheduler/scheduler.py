"""Schedules one replica: a pure state machine from requests and results to steps.

The events are `add`, `resume`, `withdraw`, `cancel`, `score`, `update`, `observe`, `isolate` and
`restart`; the only output is `schedule`. Equal calls give equal steps. The contract
schedule() -> step, update(step, results) follows vLLM v1's scheduler core; events in, instructions
out follows dask's worker state machine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime.errors import QueueFullError
from runtime.protocol.step import SampledToken, ScoredToken, Step, make_rows
from scheduler.batching.admission_control import AdmissionControl
from scheduler.batching.batcher import Batcher
from scheduler.batching.sequence_table import SequenceTable
from scheduler.batching.steps_in_flight import StepsInFlight
from scheduler.cost_model.feedback import StageRecord
from scheduler.limits import SchedulerLimits
from scheduler.observability.pipeline_meter import PipelineMeter
from scheduler.observability.snapshot import PolicySnapshot
from scheduler.policies.interface import Policy
from scheduler.sequences.sequence import (
    ScoreEvent,
    SequencePhase,
    SequenceRequest,
    SlotAllocation,
    TokenEvent,
    TrackedSequence,
)

if TYPE_CHECKING:
    from runtime.protocol.inference_types import FinishReason


class Scheduler:
    """Turns sequences into steps for one replica, epoch after epoch.

    At most `num_steps_in_flight` steps are in flight. A sequence has at most one token in flight;
    several chunks of its prompt may be in flight together. Every step that is made is sent.
    """

    def __init__(self, limits: SchedulerLimits, policy: Policy, first_step: int = 0) -> None:
        """`first_step` is the number of the first step of the epoch."""
        self._policy = policy
        self._admission = AdmissionControl()
        self._table = SequenceTable(limits, self._admission.shares)
        self.num_preemptions = 0
        # Tokens of sequences at admission, and how many of them the prefix cache held.
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._start_epoch(limits, first_step)

    def _start_epoch(self, limits: SchedulerLimits, first_step: int) -> None:
        self._limits = limits
        self._in_flight = StepsInFlight(first_step)
        self._admission.start_epoch()
        self._policy.start_epoch(limits)
        self._meter = PipelineMeter()

    def add(self, request: SequenceRequest) -> None:
        """Enqueues a sequence. Raises QueueFullError and the errors of `resume`."""
        if self.num_waiting >= self._limits.max_waiting:
            raise QueueFullError(num_waiting=self.num_waiting, limit=self._limits.max_waiting)
        self.resume(request, ())

    def resume(self, request: SequenceRequest, generated_ids: Sequence[int]) -> None:
        """Enqueues a sequence that has generated tokens already, even if the queue is full.

        Raises PromptTooLongError or NeverFitsError.
        """
        self._table.add(request, generated_ids)

    def withdraw(self, sequence_id: int) -> tuple[int, ...]:
        """Removes a sequence that continues on another replica; returns its generated tokens."""
        sequence = self._table.get(sequence_id)
        if sequence is None:
            return ()
        self._table.forget(sequence)
        return tuple(sequence.token_ids[sequence.num_prompt_tokens :])

    def cancel(self, sequence_id: int) -> None:
        """Removes a sequence; ignores unknown and finished ones, because cancellation may race.

        Its slot is released with the next step; results in flight for it are dropped.
        """
        sequence = self._table.get(sequence_id)
        if sequence is not None:
            self._admission.record_finished(sequence)
            self._table.forget(sequence)

    def score(self, step: int, scored: Sequence[ScoredToken]) -> tuple[ScoreEvent, ...]:
        """Records the prompt scores of the oldest step in flight, before its `update`.

        Raises FrameError for positions that were not requested.
        """
        found = self._in_flight.scored(step, scored)
        return tuple(ScoreEvent(sequence.sequence_id, tokens) for sequence, tokens in found)

    def update(
        self, step: int, sampled: Sequence[SampledToken], now: float
    ) -> tuple[TokenEvent, ...]:
        """Records the result of the oldest step in flight; returns the tokens of live sequences.

        Raises StepGapError for another step and FrameError for tokens that were not requested.
        """
        sampled_slots = self._in_flight.complete(step, sampled)
        sent = self._in_flight.sent(step)
        assert sent is not None, f"step {step} was sent and has no record"
        self._policy.complete(sent, now)
        self._meter.complete(sent, now)
        return self._accept(sampled_slots, now)

    def observe(self, record: StageRecord) -> None:
        """Records one stage's timing of one step, before or after the step's result.

        Policies learn from it. Records of steps that are no longer known are ignored.
        """
        sent = self._in_flight.sent(record.step)
        if sent is not None:
            self._policy.observe(record, sent)
            self._meter.observe(record, sent)

    def isolate(self, sequence_id: int | None) -> None:
        """Admits only this sequence and preempts others until a restart; None ends isolation."""
        self.num_preemptions += self._table.isolate(sequence_id)

    def restart(self, limits: SchedulerLimits, first_step: int = 0) -> tuple[int, ...]:
        """Begins a new epoch at step `first_step`: nothing in flight, no slots, all sequences wait.

        Tokens already reported are computed again as part of the prompt, so each is reported once.
        Returns the ids of sequences that cannot fit the new limits; they are removed.
        """
        dropped = self._table.start_epoch(limits)
        self._start_epoch(limits, first_step)
        return dropped

    def schedule(self, now: float) -> Step | None:
        """Makes the next step; None if there is nothing to do or enough steps are in flight.

        A step without tokens carries releases when nothing else is to be sent or in flight.
        """
        if self.num_steps_in_flight >= self._limits.num_steps_in_flight:
            return None
        queues, slot_allocator = self._table.queues, self._table.slot_allocator
        queue_head = self._admission.queue_head(queues, slot_allocator, now)
        view = self._table.view(now, queue_head, self._in_flight.steps())
        wanted = self._policy.num_steps_in_flight(view)
        max_in_flight = min(wanted, self._limits.num_steps_in_flight)
        if self.num_steps_in_flight >= max_in_flight:
            return None
        shares = self._admission.shares
        batcher = Batcher(
            self._limits, self._policy, queues, slot_allocator, shares, view, queue_head.admissible
        )
        draft = batcher.fill()
        self.num_preemptions += batcher.num_preempted
        self.num_queried_tokens += batcher.num_queried_tokens
        self.num_hit_tokens += batcher.num_hit_tokens
        slot_allocator.register_full_blocks(draft.filling)
        if not draft.chunks and (self._in_flight or not slot_allocator.has_releases):
            return None
        step = draft.to_step(self._in_flight.next_number, slot_allocator.take_releases())
        self._in_flight.send(draft.samples, draft.scores, draft.work, now, max_in_flight)
        return step

    def next_waiting_id(self, now: float) -> int | None:
        """The id of the waiting sequence that is admitted next; None if none waits."""
        first = self._table.queues.next_waiting(now, 1)
        return first[0].sequence_id if first else None

    def sequence_in_slot(self, slot: int) -> int:
        """The id of the sequence that holds a slot, which must be in use."""
        return self._table.slot_allocator.holder(slot).sequence_id

    @property
    def policy_snapshot(self) -> PolicySnapshot:
        """The policy's state, with the measured bubbles and efficiency ratios."""
        meter = self._meter
        return replace(self._policy.snapshot(), bubbles=meter.bubbles, ratios=meter.ratios)

    @property
    def num_running(self) -> int:
        return len(self._table) - self.num_waiting

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot: new, preempted, or back after a restart."""
        return self._table.queues.count(SequencePhase.WAITING)

    @property
    def unfinished(self) -> tuple[TrackedSequence, ...]:
        """Every unfinished sequence, read only."""
        return tuple(self._table)

    @property
    def num_steps_in_flight(self) -> int:
        """Steps without a result."""
        return len(self._in_flight)

    @property
    def num_blocks_used(self) -> int:
        """KV blocks that sequences hold."""
        return self._table.slot_allocator.num_blocks_used

    @property
    def num_slots_used(self) -> int:
        """Slots that sequences hold."""
        return self._table.slot_allocator.num_slots_used

    @property
    def has_work(self) -> bool:
        """False when idle: no sequence, no step in flight, no release to send."""
        return bool(self._table or self._in_flight or self._table.slot_allocator.has_releases)

    def check_integrity(self) -> None:
        """Asserts every invariant of blocks, slots, queues and steps in flight."""
        awaited = [sequence.sequence_id for sequence in self._in_flight.awaited()]
        self._table.check_integrity(awaited)
        assert self.num_steps_in_flight <= self._limits.num_steps_in_flight

    def _accept(
        self, sampled_slots: Iterable[tuple[SlotAllocation, SampledToken]], now: float
    ) -> tuple[TokenEvent, ...]:
        events: list[tuple[int, SampledToken, FinishReason | None]] = []
        tenants, continuing = [], []
        for allocation, token in sampled_slots:
            sequence = allocation.sequence
            if sequence.allocation is not allocation:
                continue  # preempted or removed since
            tenants.append(sequence.tenant)
            finish_reason = None
            if token.problem:
                self._table.forget(sequence)
            else:
                if sequence.first_token_at is None:
                    sequence.first_token_at = now
                    self._meter.first_token(sequence, now)
                finish_reason = sequence.accept(token.token_id)
                if finish_reason is None:
                    continuing.append(sequence)
                else:
                    self._meter.finish(sequence, now)
                    self._admission.record_finished(sequence)
                    self._table.forget(sequence)
            events.append((sequence.sequence_id, token, finish_reason))
        self._admission.charge_output(tenants)
        self._table.queues.move_all(continuing, SequencePhase.SAMPLING, SequencePhase.READY)
        return tuple(make_rows(TokenEvent, events))
