"""Invariants under every policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.protocol.step import StageTiming
from scheduler import POLICY_NAMES, PolicyOptions, SchedulerLimits, StageRecord, make_policy
from scheduler.policies import AdaptiveOptions, MultiplicativeOptions, PolicyName, ThrottleOptions
from tests.scheduler.mesh_model import Mesh, make_limits, make_request

SMALL = PolicyOptions(
    max_step_tokens=16,
    multiplicative=MultiplicativeOptions(base_size=8, min_size=1, max_size=64),
    throttle=ThrottleOptions(min_prefill_tokens=2, max_prefill_tokens=32),
    adaptive=AdaptiveOptions(tpot_seconds=0.05, warmup_tokens=4),
)

tight_limits = st.builds(
    SchedulerLimits,
    num_blocks=st.integers(6, 16),
    block_size=st.integers(1, 4),
    max_sequences=st.integers(1, 6),
    max_step_tokens=st.sampled_from([1, 3, 16, 64]),
    max_model_len=st.just(40),
    num_steps_in_flight=st.integers(1, 5),
    max_waiting=st.just(12),
)


class TimedMesh(Mesh):
    """A mesh that reports stages' timings with every result, on a virtual clock."""

    def __init__(self, limits: SchedulerLimits, name: PolicyName) -> None:
        super().__init__(limits, make_policy(name, SMALL))

    def report(self, step: int, num_stages: int, seconds: float) -> None:
        for stage in range(num_stages):
            timing = StageTiming(compute_seconds=seconds, idle_seconds=seconds / 2)
            self.scheduler.observe(StageRecord(step, stage, timing))


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(max_examples=60, deadline=None)
@given(
    limits=tight_limits,
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=1, max_size=8),
    turns=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 3), st.floats(0.0, 2.0)), max_size=40
    ),
    restarts=st.sets(st.integers(0, 40), max_size=2),
)
def test_load_under_any_policy_gives_each_token_once(
    name: PolicyName,
    limits: SchedulerLimits,
    sizes: list[tuple[int, int]],
    turns: list[tuple[int, int, float]],
    restarts: set[int],
) -> None:
    mesh = TimedMesh(limits, name)
    for sequence_id, (num_prompt_tokens, max_tokens) in enumerate(sizes):
        if max_tokens <= limits.max_new_tokens(num_prompt_tokens):
            mesh.add(make_request(sequence_id, num_prompt_tokens, max_tokens))
    for turn, (num_sends, num_receives, seconds) in enumerate(turns):
        for _ in range(num_sends):
            mesh.send()
            mesh.scheduler.check_integrity()
        for _ in range(min(num_receives, mesh.num_results)):
            mesh.report(mesh.stage.num_steps - mesh.num_results, 2, seconds)
            mesh.receive()
        if turn in restarts:
            mesh.restart(limits)
    mesh.finish()


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("max_step_tokens", [1, 7, 200])
@pytest.mark.parametrize("num_steps_in_flight", [1, 4])
def test_tokens_do_not_depend_on_the_policy(
    name: PolicyName, max_step_tokens: int, num_steps_in_flight: int
) -> None:
    limits = make_limits(max_step_tokens=max_step_tokens, num_steps_in_flight=num_steps_in_flight)
    mesh = Mesh(limits, make_policy(name, SMALL))
    for sequence_id in range(6):
        mesh.add(make_request(sequence_id, prompt=1 + 4 * sequence_id, max_tokens=7))
    mesh.finish()


@pytest.mark.parametrize("name", [name for name in POLICY_NAMES if name != "vllm"])
def test_decodes_under_policies_that_spread_them_never_exceed_nine_of_32(name: PolicyName) -> None:
    """Case 1 (vllm#41682, #15330, #57433): all decodes in one batch, the other slots run empty.

    `vllm` stands for what was reported there, and does.
    """
    limits = make_limits(
        num_blocks=400, max_sequences=40, max_step_tokens=200, num_steps_in_flight=4
    )
    options = PolicyOptions(
        max_step_tokens=200, multiplicative=MultiplicativeOptions(base_size=200, min_size=100)
    )
    mesh = Mesh(limits, make_policy(name, options))
    for sequence_id in range(32):
        mesh.add(make_request(sequence_id, prompt=4, max_tokens=40))
    while mesh.scheduler.num_waiting or any(not tokens for tokens in mesh.tokens.values()):
        mesh.send_all()
        mesh.receive()
    most = 0
    for _ in range(40):
        most = max([most, *(len(step.chunks) for step in mesh.send_all())])
        mesh.receive()
    assert most <= 9
    mesh.finish()


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_policy_snapshot_has_name_and_limits(name: PolicyName) -> None:
    mesh = Mesh(make_limits(num_steps_in_flight=3), make_policy(name, SMALL))
    policy_snapshot = mesh.scheduler.policy_snapshot
    assert (policy_snapshot.policy, policy_snapshot.num_steps_in_flight) == (name, 3)


def test_observe_unknown_step_is_ignored() -> None:
    mesh = Mesh(make_limits(), make_policy("adaptive", SMALL))
    mesh.scheduler.observe(StageRecord(7, 0, StageTiming(compute_seconds=1.0)))
    assert mesh.scheduler.policy_snapshot.stages == ()
