"""Random event sequences against a replica that checks every step as a worker would."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.errors import NeverFitsError, PromptTooLongError, QueueFullError
from scheduler import SchedulerLimits
from tests.scheduler.mesh_model import Mesh, make_request
from tests.scheduler.stage_model import VOCAB_SIZE

MAX_MODEL_LEN = 40

epoch_limits = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(2, 16),
    block_size=st.sampled_from([1, 2, 4, 8]),
    max_sequences=st.integers(1, 6),
    max_step_tokens=st.sampled_from([1, 2, 3, 7, 16, 64]),
    max_model_len=st.just(MAX_MODEL_LEN),
    num_steps_in_flight=st.integers(1, 5),
    max_waiting=st.just(12),
    prefix_caching=st.booleans(),
)

tight_limits = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(6, 12),
    block_size=st.integers(1, 2),
    max_sequences=st.integers(2, 6),
    max_step_tokens=st.sampled_from([2, 5, 64]),
    max_model_len=st.just(MAX_MODEL_LEN),
    num_steps_in_flight=st.integers(1, 5),
    max_waiting=st.just(12),
)


@settings(max_examples=300, deadline=None)
@given(
    limits=tight_limits,
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8)), min_size=2, max_size=8),
    turns=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60),
    cancelled=st.dictionaries(st.integers(0, 60), st.integers(0, 7), max_size=2),
    is_optimistic=st.booleans(),
)
def test_load_beyond_the_cache_gives_each_token_once(
    limits: SchedulerLimits,
    sizes: list[tuple[int, int]],
    turns: list[tuple[int, int]],
    cancelled: dict[int, int],
    is_optimistic: bool,
) -> None:
    mesh = Mesh(limits)
    if is_optimistic:
        mesh.expect_short_answers()
    for sequence_id, (num_prompt_tokens, max_tokens) in enumerate(sizes):
        if max_tokens <= limits.max_new_tokens(num_prompt_tokens):
            family = sequence_id % 3
            mesh.add(make_request(sequence_id, num_prompt_tokens, max_tokens, family=family))
    for turn, (num_sends, num_receives) in enumerate(turns):
        for _ in range(num_sends):
            mesh.send()
            mesh.scheduler.check_integrity()
        for _ in range(min(num_receives, mesh.num_results)):
            mesh.receive()
        if turn in cancelled and cancelled[turn] not in mesh.finish_reasons:
            mesh.cancel(cancelled[turn])
    mesh.finish()


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, cancels, steps, results and restarts in any order."""

    @initialize(limits=epoch_limits, is_optimistic=st.booleans())
    def start(self, limits: SchedulerLimits, is_optimistic: bool) -> None:
        self.mesh = Mesh(limits)
        if is_optimistic:
            self.mesh.expect_short_answers()
        self.num_requests = 0

    @rule(
        num_prompt_tokens=st.integers(1, 24),
        max_tokens=st.integers(1, 16),
        stop_ids=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=1),
        arrives_before=st.integers(0, 2),
        family=st.integers(0, 1),
        cache_salt=st.sampled_from(["", "", "other"]),
        reads_prefix_cache=st.sampled_from([True, True, True, False]),
        priority=st.integers(-1, 1),
        tenant=st.sampled_from(["", "a", "b"]),
        ttft_target_seconds=st.none() | st.floats(0.0, 50.0),
        deadline=st.none() | st.floats(0.0, 100.0),
    )
    def add(
        self,
        num_prompt_tokens: int,
        max_tokens: int,
        stop_ids: frozenset[int],
        arrives_before: int,
        family: int,
        cache_salt: str,
        reads_prefix_cache: bool,
        priority: int,
        tenant: str,
        ttft_target_seconds: float | None,
        deadline: float | None,
    ) -> None:
        self.num_requests += 1
        request = make_request(
            self.num_requests,
            num_prompt_tokens,
            max_tokens,
            stop_ids,
            arrival=float(self.num_requests - arrives_before),
            family=family,
            cache_salt=cache_salt,
            reads_prefix_cache=reads_prefix_cache,
            priority=priority,
            tenant=tenant,
            ttft_target_seconds=ttft_target_seconds,
            deadline=deadline,
        )
        try:
            self.mesh.add(request)
        except (NeverFitsError, PromptTooLongError):
            limits = self.mesh.limits
            assert max_tokens > limits.max_new_tokens(num_prompt_tokens)
        except QueueFullError:
            assert self.mesh.scheduler.num_waiting >= self.mesh.limits.max_waiting

    @precondition(lambda self: self.num_requests > 0)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.integers(1, self.num_requests))
        if sequence_id not in self.mesh.finish_reasons:
            self.mesh.cancel(sequence_id)
        else:
            self.mesh.scheduler.cancel(sequence_id)

    @rule(num_steps=st.integers(1, 6))
    def send(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.mesh.send()

    @precondition(lambda self: self.mesh.num_results > 0)
    @rule()
    def receive(self) -> None:
        self.mesh.receive()

    @rule(num_turns=st.integers(1, 10))
    def turn(self, num_turns: int) -> None:
        for _ in range(num_turns):
            self.mesh.send_all()
            if self.mesh.num_results:
                self.mesh.receive()

    @rule(seconds=st.floats(0.0, 100.0))
    def time_passes(self, seconds: float) -> None:
        self.mesh.now += seconds

    @rule(limits=epoch_limits)
    def restart(self, limits: SchedulerLimits) -> None:
        self.mesh.restart(limits)

    @rule()
    def restart_as_it_was(self) -> None:
        assert self.mesh.restart(self.mesh.limits) == ()

    @invariant()
    def is_sound(self) -> None:
        self.mesh.scheduler.check_integrity()
        assert self.mesh.scheduler.num_steps_in_flight == self.mesh.num_results

    def teardown(self) -> None:
        if hasattr(self, "mesh"):
            self.mesh.finish()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
