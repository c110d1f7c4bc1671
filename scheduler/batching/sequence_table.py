"""Owns every unfinished sequence of one replica, with its queue, slot and blocks.

It outlives epochs; in a new epoch every sequence waits. It does not decide what runs next.
"""

from collections.abc import Iterator, Sequence

from runtime.errors import NeverFitsError, PromptTooLongError
from scheduler.batching.admission_control import QueueHead
from scheduler.cost_model.feedback import SentStep
from scheduler.kv_cache.slot_allocator import SlotAllocator
from scheduler.limits import SchedulerLimits
from scheduler.policies.interface import SchedulerView
from scheduler.sequences.queues import SequenceQueues
from scheduler.sequences.sequence import SequencePhase, SequenceRequest, TrackedSequence
from scheduler.sequences.waiting_queue import FairShare


class SequenceTable:
    """The unfinished sequences by id, in order of insertion."""

    def __init__(self, limits: SchedulerLimits, shares: FairShare) -> None:
        self._shares = shares
        self._sequences: dict[int, TrackedSequence] = {}
        self._start(limits)

    def _start(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.slot_allocator = SlotAllocator(limits)
        self.queues = SequenceQueues(self._shares)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[TrackedSequence]:
        return iter(self._sequences.values())

    def get(self, sequence_id: int) -> TrackedSequence | None:
        """The sequence; None if it is unknown or finished."""
        return self._sequences.get(sequence_id)

    def add(self, request: SequenceRequest, generated_ids: Sequence[int]) -> None:
        """Enqueues a sequence. Raises PromptTooLongError or NeverFitsError."""
        assert request.sequence_id not in self._sequences, f"{request.sequence_id} is in use"
        assert request.prompt_ids, f"sequence {request.sequence_id} has an empty prompt"
        assert request.max_tokens > len(generated_ids), f"{request.sequence_id} requests no tokens"
        num_prompt_tokens = len(request.prompt_ids)
        self.limits.check_fits(num_prompt_tokens, request.max_tokens)
        final_len = self.limits.final_len(num_prompt_tokens, request.max_tokens)
        sequence = TrackedSequence(request, [*request.prompt_ids, *generated_ids], final_len)
        self._sequences[request.sequence_id] = sequence
        self.queues.add(sequence)

    def forget(self, sequence: TrackedSequence) -> None:
        """Removes a sequence; its slot is released with the next step."""
        del self._sequences[sequence.sequence_id]
        self.queues.remove(sequence)
        self.slot_allocator.close(sequence)

    def isolate(self, sequence_id: int | None) -> int:
        """Admits only this sequence; None admits all. Returns the number of preemptions."""
        self.queues.isolated_id = sequence_id
        if sequence_id is None:
            return 0
        others = [each for each in self.queues.running() if each.sequence_id != sequence_id]
        for sequence in others:
            self.slot_allocator.close(sequence)
            self.queues.move(sequence, SequencePhase.WAITING)
        return len(others)

    def start_epoch(self, limits: SchedulerLimits) -> tuple[int, ...]:
        """Enqueues every sequence; returns the ids of those that cannot fit and are removed."""
        self._start(limits)
        sequences = list(self._sequences.values())
        return tuple(each.sequence_id for each in sequences if not self._wait_again(each))

    def _wait_again(self, sequence: TrackedSequence) -> bool:
        """Enqueues a sequence in the new epoch; removes it and returns False if it cannot fit."""
        request = sequence.request
        num_prompt_tokens = len(request.prompt_ids)
        sequence.start_epoch(self.limits.final_len(num_prompt_tokens, request.max_tokens))
        try:
            self.limits.check_fits(num_prompt_tokens, request.max_tokens)
        except (NeverFitsError, PromptTooLongError):
            fits = False
        else:
            fits = len(sequence.token_ids) < sequence.final_len
        if fits:
            self.queues.add(sequence)
        else:
            del self._sequences[sequence.sequence_id]
        return fits

    def view(
        self, now: float, queue_head: QueueHead, in_flight: Sequence[SentStep]
    ) -> SchedulerView:
        """The policy's view of the table."""
        ready = self.queues.of(SequencePhase.READY)
        return SchedulerView(
            now=now,
            limits=self.limits,
            in_flight=in_flight,
            num_decoding=len(ready) + self.queues.count(SequencePhase.SAMPLING),
            num_blocks_free=self.slot_allocator.num_blocks_free,
            ready=ready,
            prefilling=self.queues.by_urgency(SequencePhase.PREFILL),
            waiting=queue_head.waiting,
            num_admissible=queue_head.num_admissible,
        )

    def check_integrity(self, awaited: Sequence[int]) -> None:
        """Asserts every invariant; `awaited` are the sequences with a token in flight."""
        self.queues.check_integrity()
        running = self.queues.running()
        num_waiting = self.queues.count(SequencePhase.WAITING)
        assert len(running) + num_waiting == len(self._sequences), "a sequence is lost"
        self.slot_allocator.check_integrity(running)
        sampling = sorted(
            sequence.sequence_id for sequence in self.queues.of(SequencePhase.SAMPLING)
        )
        assert list(awaited) == sampling, f"tokens in flight for {awaited}, awaited by {sampling}"
