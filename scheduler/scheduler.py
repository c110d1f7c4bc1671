"""Owns what runs when on one replica: a pure state machine of requests, results and steps.

`add`, `resume`, `withdraw`, `cancel`, `score`, `update`, `observe`, `isolate` and `restart` are its
events, `schedule` its only output. It reads no clock, environment or random source and does no I/O,
so equal calls give equal steps. The contract schedule() -> step, update(step, results) follows vLLM
v1's scheduler core; events in, instructions out follows dask's worker state machine. Longer than
other files, so that all that can happen to a scheduler stands in one place.
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

    At most `num_steps_in_flight` steps are out at a time, a sequence has at most one token in
    flight, and successive chunks of its prompt may be out together. A step, once made, is sent.
    """

    def __init__(self, limits: SchedulerLimits, policy: Policy, first_step: int = 0) -> None:
        """`first_step` is the number of the first step of the epoch."""
        self._policy = policy
        self._admission = AdmissionControl()
        self._table = SequenceTable(limits, self._admission.shares)
        self.num_preemptions = 0
        # Tokens of sequences that got a slot, and how many of them the prefix cache had.
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._start_epoch(limits, first_step)

    def _start_epoch(self, limits: SchedulerLimits, first_step: int) -> None:
        self._limits = limits
        self._in_flight = StepsInFlight(first_step)
        self._admission.start_epoch()
        self._policy.start_epoch(limits)
        self._meter = PipelineMeter()

    # ---- events ----------------------------------------------------------------------------------

    def add(self, request: SequenceRequest) -> None:
        """Takes a sequence in. Raises QueueFullError and what `resume` raises."""
        if self.num_waiting >= self._limits.max_waiting:
            raise QueueFullError(num_waiting=self.num_waiting, limit=self._limits.max_waiting)
        self.resume(request, ())

    def resume(self, request: SequenceRequest, generated_ids: Sequence[int]) -> None:
        """Takes in a sequence that has these tokens already, whoever waits here.

        Raises PromptTooLongError or NeverFitsError.
        """
        self._table.add(request, generated_ids)

    def withdraw(self, sequence_id: int) -> tuple[int, ...]:
        """Drops a sequence as `cancel` does and returns its new tokens: it goes on elsewhere."""
        sequence = self._table.get(sequence_id)
        if sequence is None:
            return ()
        self._table.forget(sequence)
        return tuple(sequence.token_ids[sequence.num_prompt_tokens :])

    def cancel(self, sequence_id: int) -> None:
        """Drops a sequence; unknown or finished ones are ignored, because both sides may race.

        Its slot is released with the next step, and what is in flight for it comes to nothing.
        """
        sequence = self._table.get(sequence_id)
        if sequence is not None:
            self._admission.record_finished(sequence)
            self._table.forget(sequence)

    def score(self, step: int, scored: Sequence[ScoredToken]) -> tuple[ScoreEvent, ...]:
        """Takes what the oldest step in flight scored, before its `update`.

        Raises FrameError for positions that were not asked for.
        """
        found = self._in_flight.scored(step, scored)
        return tuple(ScoreEvent(sequence.sequence_id, tokens) for sequence, tokens in found)

    def update(
        self, step: int, sampled: Sequence[SampledToken], now: float
    ) -> tuple[TokenEvent, ...]:
        """Takes the result of the oldest step in flight; returns the new tokens of the living.

        Raises StepGapError for another step and FrameError for tokens that were not asked for.
        """
        drawn = self._in_flight.complete(step, sampled)
        sent = self._in_flight.sent(step)
        assert sent is not None, f"step {step} was sent and is forgotten"
        self._policy.complete(sent, now)
        self._meter.complete(sent, now)
        return self._accept(drawn, now)

    def observe(self, record: StageRecord) -> None:
        """Takes what one stage measured of one step, before or after the step's result.

        Policies learn from it; a step of long ago, or of another epoch, is ignored.
        """
        sent = self._in_flight.sent(record.step)
        if sent is not None:
            self._policy.observe(record, sent)
            self._meter.observe(record, sent)

    def isolate(self, sequence_id: int | None) -> None:
        """From now on only this sequence gets a slot, and others lose theirs; None: all do again.

        A restart ends it, too.
        """
        self.num_preemptions += self._table.isolate(sequence_id)

    def restart(self, limits: SchedulerLimits, first_step: int = 0) -> tuple[int, ...]:
        """Begins a new epoch: nothing in flight, no slots, and every sequence waits again.

        Tokens already reported stay and are computed again as part of the prompt, so each is
        reported once. Returns the ids of sequences that cannot fit the new limits; they are gone.
        """
        dropped = self._table.start_epoch(limits)
        self._start_epoch(limits, first_step)
        return dropped

    # ---- output ----------------------------------------------------------------------------------

    def schedule(self, now: float) -> Step | None:
        """Makes the next step; None: nothing to do now, or enough steps are in flight.

        A step without tokens carries releases when there is nothing else to send and nothing out.
        """
        if self.num_steps_in_flight >= self._limits.num_steps_in_flight:
            return None
        queues, slot_allocator = self._table.queues, self._table.slot_allocator
        queue_head = self._admission.queue_head(queues, slot_allocator, now)
        view = self._table.view(now, queue_head, self._in_flight.steps())
        most = min(self._policy.num_steps_in_flight(view), self._limits.num_steps_in_flight)
        if self.num_steps_in_flight >= most:
            return None
        batcher = Batcher(
            self._limits,
            self._policy,
            queues,
            slot_allocator,
            self._admission.shares,
            view,
            queue_head.admissible,
        )
        draft = batcher.fill()
        self.num_preemptions += batcher.num_preempted
        self.num_queried_tokens += batcher.num_queried_tokens
        self.num_hit_tokens += batcher.num_hit_tokens
        slot_allocator.register_full_blocks(draft.fillers)
        if not draft.chunks and (self._in_flight or not slot_allocator.has_releases):
            return None
        step = draft.to_step(self._in_flight.next_number, slot_allocator.take_releases())
        self._in_flight.send(draft.draws, draft.scores, draft.work, now, most)
        return step

    def next_waiting_id(self, now: float) -> int | None:
        """The id of the waiting sequence that gets a slot next; None: nobody waits."""
        first = self._table.queues.next_waiting(now, 1)
        return first[0].sequence_id if first else None

    def sequence_in_slot(self, slot: int) -> int:
        """The id of the sequence that holds a slot, which must be in use."""
        return self._table.slot_allocator.holder(slot).sequence_id

    @property
    def policy_snapshot(self) -> PolicySnapshot:
        """What the policy thinks at this moment, and what the pipeline makes of its time."""
        meter = self._meter
        return replace(self._policy.snapshot(), bubbles=meter.bubbles, ratios=meter.ratios)

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._table) - self.num_waiting

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot: new, preempted, or back after a restart."""
        return self._table.queues.count(SequencePhase.WAITING)

    @property
    def unfinished(self) -> tuple[TrackedSequence, ...]:
        """Every sequence, for whoever routes others; only looked at."""
        return tuple(self._table)

    @property
    def num_steps_in_flight(self) -> int:
        """Steps made whose result has not come."""
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
        """False when idle: no sequence, no step in flight, no release that stages wait for."""
        return bool(self._table or self._in_flight or self._table.slot_allocator.has_releases)

    def check_integrity(self) -> None:
        """Asserts every invariant of blocks, slots, queues and steps in flight."""
        awaited = [sequence.sequence_id for sequence in self._in_flight.awaited()]
        self._table.check_integrity(awaited)
        assert self.num_steps_in_flight <= self._limits.num_steps_in_flight

    # ---- inside ----------------------------------------------------------------------------------

    def _accept(
        self, drawn: Iterable[tuple[SlotAllocation, SampledToken]], now: float
    ) -> tuple[TokenEvent, ...]:
        events: list[tuple[int, SampledToken, FinishReason | None]] = []
        tenants, going_on = [], []
        for allocation, token in drawn:
            sequence = allocation.sequence
            if sequence.allocation is not allocation:
                continue  # it lost its slot, or is gone
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
                    going_on.append(sequence)
                else:
                    self._end(sequence, now)
            events.append((sequence.sequence_id, token, finish_reason))
        self._admission.charge_output(tenants)
        self._table.queues.move_all(going_on, SequencePhase.SAMPLING, SequencePhase.READY)
        return tuple(make_rows(TokenEvent, events))

    def _end(self, sequence: TrackedSequence, now: float) -> None:
        self._meter.finish(sequence, now)
        self._admission.record_finished(sequence)
        self._table.forget(sequence)
