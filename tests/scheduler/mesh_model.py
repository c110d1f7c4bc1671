"""A scheduler with a stage model, its requests and their expected answers."""

from collections import deque
from collections.abc import Sequence

from runtime.protocol.inference_types import FinishReason
from runtime.protocol.step import SampledToken, SlotSampling, Step
from scheduler import (
    FixedPolicy,
    Policy,
    Scheduler,
    SchedulerLimits,
    SequenceRequest,
    TokenEvent,
)
from scheduler.kv_cache.memory_forecast import NUM_TRUSTED
from tests.scheduler.stage_model import VOCAB_SIZE, StageModel, draw


def make_limits(
    num_blocks: int = 64,
    block_size: int = 4,
    max_sequences: int = 8,
    max_step_tokens: int = 16,
    max_model_len: int = 64,
    num_steps_in_flight: int = 2,
    max_waiting: int = 100,
    prefix_caching: bool = True,
) -> SchedulerLimits:
    """Limits of a small epoch, with changes."""
    return SchedulerLimits(
        num_blocks=num_blocks,
        block_size=block_size,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        max_model_len=max_model_len,
        num_steps_in_flight=num_steps_in_flight,
        max_waiting=max_waiting,
        prefix_caching=prefix_caching,
    )


def make_request(
    sequence_id: int,
    prompt: int | Sequence[int] = 4,
    max_tokens: int = 4,
    stop_ids: frozenset[int] = frozenset(),
    arrival: float | None = None,
    family: int | None = None,
    cache_salt: str = "",
    reads_prefix_cache: bool = True,
    priority: int = 0,
    tenant: str = "",
    ttft_target_seconds: float | None = None,
    deadline: float | None = None,
) -> SequenceRequest:
    """A request; `prompt` is its tokens or their number; one family has equal tokens."""
    if isinstance(prompt, int):
        start = 7 * (sequence_id if family is None else family)
        prompt = [(start + position * 3) % VOCAB_SIZE for position in range(prompt)]
    return SequenceRequest(
        sequence_id=sequence_id,
        prompt_ids=tuple(prompt),
        sampling=SlotSampling(seed=sequence_id),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        arrival=float(sequence_id) if arrival is None else arrival,
        cache_salt=cache_salt,
        reads_prefix_cache=reads_prefix_cache,
        priority=priority,
        tenant=tenant,
        ttft_target_seconds=ttft_target_seconds,
        deadline=deadline,
    )


def answer(request: SequenceRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """The expected answer, computed in one pass."""
    tokens = list(request.prompt_ids)
    generated: list[int] = []
    while True:
        token_id = draw(tokens, request.sampling.seed)
        tokens.append(token_id)
        generated.append(token_id)
        if token_id in request.stop_ids:
            return generated, FinishReason.STOP
        if len(generated) == request.max_tokens or len(tokens) == max_model_len:
            return generated, FinishReason.LENGTH


class Mesh:
    """A scheduler with a stage model; records the tokens of every client."""

    def __init__(self, limits: SchedulerLimits, policy: Policy | None = None) -> None:
        self.limits = limits
        self.now = 0.0
        self.scheduler = Scheduler(limits, policy or FixedPolicy(limits.max_step_tokens))
        self.stage = StageModel(limits)
        self.requests: dict[int, SequenceRequest] = {}
        self.tokens: dict[int, list[int]] = {}
        self.finish_reasons: dict[int, FinishReason] = {}
        self.cancelled: set[int] = set()
        self._results: deque[tuple[int, tuple[SampledToken, ...]]] = deque()

    def add(self, request: SequenceRequest) -> None:
        """Adds a request and starts its record."""
        self.scheduler.add(request)
        self.requests[request.sequence_id] = request
        self.tokens[request.sequence_id] = []

    def expect_short_answers(self) -> None:
        """Makes the forecast predict short answers, so that more is admitted than fits."""
        for number in range(NUM_TRUSTED):
            self.add(make_request(10_000 + number, prompt=[0], max_tokens=1))
            self.finish()

    def cancel(self, sequence_id: int) -> None:
        """Cancels a request: no token may come for it from now on."""
        self.cancelled.add(sequence_id)
        self.scheduler.cancel(sequence_id)

    def send(self) -> Step | None:
        """Makes the next step and runs it; the result stays in flight."""
        step = self.scheduler.schedule(self.now)
        if step is not None:
            self._results.append((step.number, self.stage.run(step)))
        return step

    def receive(self) -> tuple[TokenEvent, ...]:
        """Delivers the oldest result in flight."""
        number, sampled = self._results.popleft()
        events = self.scheduler.update(number, sampled, self.now)
        for event in events:
            assert event.sequence_id not in self.cancelled
            assert event.sequence_id not in self.finish_reasons
            self.tokens[event.sequence_id].append(event.token.token_id)
            if event.finish_reason is not None:
                self.finish_reasons[event.sequence_id] = event.finish_reason
        return events

    def send_all(self) -> list[Step]:
        """Sends until the scheduler makes no further step."""
        steps: list[Step] = []
        while (step := self.send()) is not None:
            steps.append(step)
        return steps

    def restart(self, limits: SchedulerLimits, first_step: int = 0) -> tuple[int, ...]:
        """Ends the epoch, drops results in flight, and begins another one."""
        self.limits = limits
        self.stage = StageModel(limits, first_step)
        self._results.clear()
        dropped = self.scheduler.restart(limits, first_step)
        self.cancelled.update(dropped)
        return dropped

    @property
    def num_results(self) -> int:
        """Results in flight."""
        return len(self._results)

    def finish(self, max_steps: int = 20_000) -> None:
        """Runs until idle, then checks all answers and that nothing is held."""
        while self.scheduler.has_work:
            self.send_all()
            self.scheduler.check_integrity()
            assert self._results, "the scheduler has work but sends nothing"
            assert self.stage.num_steps < max_steps, "the scheduler makes no progress"
            self.receive()
        self.check_idle()
        self.check_answers()

    def check_idle(self) -> None:
        """Asserts that scheduler and stage hold nothing."""
        self.scheduler.check_integrity()
        scheduler = self.scheduler
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
        assert (scheduler.num_blocks_used, scheduler.num_slots_used) == (0, 0)
        assert (len(self.stage.slots), self.stage.num_blocks_used) == (0, 0)
        assert scheduler.schedule(self.now) is None

    def check_answers(self) -> None:
        """Asserts that requests have exactly their answers, and cancelled ones a prefix."""
        for sequence_id, request in self.requests.items():
            expected, reason = answer(request, self.limits.max_model_len)
            tokens = self.tokens[sequence_id]
            if sequence_id in self.cancelled:
                assert tokens == expected[: len(tokens)]
            else:
                assert (tokens, self.finish_reasons[sequence_id]) == (expected, reason)
