"""Owns what runs when on one replica: a pure state machine of requests, results and steps.

`add`, `resume`, `withdraw`, `cancel`, `update`, `observe` and `restart` are its events, `schedule`
its only output. It reads no clock, environment or random source and does no I/O, so equal calls
give equal steps. The contract schedule() -> step, update(step, results) follows vLLM v1's scheduler
core; events in, instructions out follows dask's worker state machine. Longer than other files: the
whole contract is one class, and much of it answers in one line.
"""

from collections.abc import Sequence
from dataclasses import replace

from runtime.errors import NeverFitsError, PromptTooLongError, QueueFullError
from runtime.step import SampledToken, ScoredToken, Step
from scheduler.batching import Batcher
from scheduler.feedback import StageRecord
from scheduler.insight import SchedulerInsight
from scheduler.intake import Intake, Line
from scheduler.limits import SchedulerLimits
from scheduler.pipeline_meter import PipelineMeter
from scheduler.policy import Policy, SchedulerView
from scheduler.queues import SequenceQueues
from scheduler.residences import Residences
from scheduler.sequence import Phase, ScoreEvent, SequenceRequest, TokenEvent, TrackedSequence
from scheduler.steps_in_flight import StepsInFlight


class Scheduler:
    """Turns sequences into steps for one replica, epoch after epoch.

    At most `num_steps_in_flight` steps are out at a time, a sequence has at most one token in
    flight, and successive chunks of its prompt may be out together. A step, once made, is sent.
    """

    def __init__(self, limits: SchedulerLimits, policy: Policy) -> None:
        self._policy = policy
        self._sequences: dict[int, TrackedSequence] = {}
        self._intake = Intake()
        self.num_preemptions = 0
        # Tokens of sequences that got a slot, and how many of them the prefix cache had.
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._start_epoch(limits)

    def _start_epoch(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._residences = Residences(limits)
        self._queues = SequenceQueues(self._intake.shares)
        self._in_flight = StepsInFlight()
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
        assert request.sequence_id not in self._sequences, f"{request.sequence_id} is in use"
        assert request.prompt_ids, f"sequence {request.sequence_id} has an empty prompt"
        assert request.max_tokens > len(generated_ids), f"{request.sequence_id} wants no tokens"
        num_prompt_tokens = len(request.prompt_ids)
        self._limits.check_fits(num_prompt_tokens, request.max_tokens)
        final_len = self._limits.final_len(num_prompt_tokens, request.max_tokens)
        token_ids = [*request.prompt_ids, *generated_ids]
        sequence = TrackedSequence(request, token_ids, final_len)
        self._sequences[request.sequence_id] = sequence
        self._queues.add(sequence)

    def withdraw(self, sequence_id: int) -> tuple[int, ...]:
        """Drops a sequence as `cancel` does and returns its new tokens: it goes on elsewhere."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return ()
        self._forget(sequence)
        return tuple(sequence.token_ids[len(sequence.request.prompt_ids) :])

    def cancel(self, sequence_id: int) -> None:
        """Drops a sequence; unknown or finished ones are ignored, because both sides may race.

        Its slot is released with the next step, and what is in flight for it comes to nothing.
        """
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            self._intake.ended(sequence)
            self._forget(sequence)

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
        tokens = self._in_flight.complete(step, sampled)
        sent = self._in_flight.sent(step)
        assert sent is not None, f"step {step} was sent and is forgotten"
        self._policy.complete(sent, now)
        self._meter.complete(sent, now)
        self._intake.served(sequence for sequence, _ in tokens)
        return tuple(self._accept(sequence, token, now) for sequence, token in tokens)

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
        self._queues.alone = sequence_id
        if sequence_id is None:
            return
        for sequence in self._queues.running():
            if sequence.sequence_id != sequence_id:
                self._residences.close(sequence)
                self._queues.move(sequence, Phase.WAITING)
                self.num_preemptions += 1

    def restart(self, limits: SchedulerLimits) -> tuple[int, ...]:
        """Begins a new epoch: nothing in flight, no slots, and every sequence waits again.

        Tokens already reported stay and are computed again as part of the prompt, so each is
        reported once. Returns the ids of sequences that cannot fit the new limits; they are gone.
        """
        sequences = list(self._sequences.values())
        self._start_epoch(limits)
        return tuple(
            sequence.sequence_id for sequence in sequences if not self._wait_again(sequence)
        )

    # ---- output ----------------------------------------------------------------------------------

    def schedule(self, now: float) -> Step | None:
        """Makes the next step; None: nothing to do now, or enough steps are in flight.

        A step without tokens carries releases when there is nothing else to send and nothing out.
        """
        if self.num_steps_in_flight >= self._limits.num_steps_in_flight:
            return None
        line = self._intake.line(self._queues, self._residences, now)
        view = self._view(now, line)
        most = min(self._policy.num_steps_in_flight(view), self._limits.num_steps_in_flight)
        if self.num_steps_in_flight >= most:
            return None
        batcher = Batcher(
            self._limits,
            self._policy,
            self._queues,
            self._residences,
            self._intake.shares,
            view,
            line.admissible,
        )
        draft = batcher.fill()
        self.num_preemptions += batcher.num_preempted
        self.num_queried_tokens += batcher.num_queried_tokens
        self.num_hit_tokens += batcher.num_hit_tokens
        self._residences.name_filled(draft.members)
        if not draft.chunks and (self._in_flight or not self._residences.has_releases):
            return None
        step = draft.to_step(self._in_flight.next_number, self._residences.take_releases())
        self._in_flight.send(draft.draws, draft.scores, draft.work, now, most)
        return step

    def first_in_line(self, now: float) -> int | None:
        """The id of the waiting sequence that gets a slot next; None: nobody waits."""
        first = self._queues.next_in_line(now, 1)
        return first[0].sequence_id if first else None

    def sequence_in_slot(self, slot: int) -> int:
        """The id of the sequence that holds a slot, which must be in use."""
        return self._residences.holder(slot).sequence_id

    @property
    def insight(self) -> SchedulerInsight:
        """What the policy thinks at this moment, and what the pipeline makes of its time."""
        meter = self._meter
        return replace(self._policy.insight(), bubbles=meter.bubbles, ratios=meter.ratios)

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._sequences) - self.num_waiting

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot: new, preempted, or back after a restart."""
        return self._queues.count(Phase.WAITING)

    @property
    def unfinished(self) -> tuple[TrackedSequence, ...]:
        """Every sequence, for whoever routes others; only looked at."""
        return tuple(self._sequences.values())

    @property
    def num_steps_in_flight(self) -> int:
        """Steps made whose result has not come."""
        return len(self._in_flight)

    @property
    def num_blocks_used(self) -> int:
        """KV blocks that sequences hold."""
        return self._residences.num_blocks_used

    @property
    def num_slots_used(self) -> int:
        """Slots that sequences hold."""
        return self._residences.num_slots_used

    @property
    def has_work(self) -> bool:
        """False when idle: no sequence, no step in flight, no release that stages wait for."""
        return bool(self._sequences or self._in_flight or self._residences.has_releases)

    def check_integrity(self) -> None:
        """Asserts every invariant of blocks, slots, queues and steps in flight."""
        self._queues.check_integrity()
        running = self._queues.running()
        assert len(running) + self.num_waiting == len(self._sequences), "a sequence is lost"
        self._residences.check_integrity(running)
        assert self.num_steps_in_flight <= self._limits.num_steps_in_flight
        awaited = [sequence.sequence_id for sequence in self._in_flight.awaited()]
        sampling = sorted(sequence.sequence_id for sequence in self._queues.of(Phase.SAMPLING))
        assert awaited == sampling, f"tokens in flight for {awaited}, awaited by {sampling}"

    # ---- inside ----------------------------------------------------------------------------------

    def _view(self, now: float, line: Line) -> SchedulerView:
        ready = self._queues.of(Phase.READY)
        return SchedulerView(
            now=now,
            limits=self._limits,
            in_flight=self._in_flight.steps(),
            num_decoding=len(ready) + self._queues.count(Phase.SAMPLING),
            num_blocks_free=self._residences.num_blocks_free,
            num_slots_free=self._residences.num_slots_free,
            ready=ready,
            prefilling=self._queues.by_urgency(Phase.PREFILL),
            waiting=line.waiting,
            num_admissible=line.num_admissible,
        )

    def _accept(self, sequence: TrackedSequence, token: SampledToken, now: float) -> TokenEvent:
        if token.problem:
            self._forget(sequence)
            return TokenEvent(sequence.sequence_id, token)
        if sequence.first_token_at is None:
            self._meter.first_token(sequence, now)
        finish_reason = sequence.accept(token.token_id, now)
        if finish_reason is None:
            self._queues.move(sequence, Phase.READY)
        else:
            self._meter.finish(sequence, now)
            self._intake.ended(sequence)
            self._forget(sequence)
        return TokenEvent(sequence.sequence_id, token, finish_reason)

    def _forget(self, sequence: TrackedSequence) -> None:
        del self._sequences[sequence.sequence_id]
        self._queues.remove(sequence)
        self._residences.close(sequence)

    def _wait_again(self, sequence: TrackedSequence) -> bool:
        """Queues a sequence in the new epoch, or drops it and returns False if it cannot fit."""
        request = sequence.request
        num_prompt_tokens = len(request.prompt_ids)
        sequence.start_epoch(self._limits.final_len(num_prompt_tokens, request.max_tokens))
        try:
            self._limits.check_fits(num_prompt_tokens, request.max_tokens)
        except (NeverFitsError, PromptTooLongError):
            fits = False
        else:
            fits = len(sequence.token_ids) < sequence.final_len
        if fits:
            self._queues.add(sequence)
        else:
            del self._sequences[sequence.sequence_id]
        return fits
