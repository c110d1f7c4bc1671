"""Every policy in a running coordinator: other microbatches, the same tokens."""

import asyncio
from pathlib import Path

import pytest

from protos import mesh_pb2
from scheduler import POLICY_NAMES, PolicyName
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

PROMPTS = [[1 + index, 2, 3, *range(5, 5 + 3 * index)] for index in range(8)]


@pytest.mark.parametrize("policy", POLICY_NAMES)
async def test_policy_in_a_live_mesh_gives_the_same_tokens_as_any_other(
    toy_folder: Path, policy: PolicyName
) -> None:
    async with toy_mesh(toy_folder, pp=3, policy=policy, max_step_tokens=16) as mesh:
        await mesh.until_ready()
        answers = await asyncio.gather(
            *(collect(mesh.infer(token_request(prompt, max_tokens=20))) for prompt in PROMPTS)
        )
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert answer[0].tokens == toy_answer(prompt, 20)


async def test_policy_adaptive_loses_its_epoch_starts_to_learn_anew_and_goes_on(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, policy="adaptive") as mesh:
        await mesh.until_ready()
        await collect(mesh.infer(token_request(PROMPTS[0], max_tokens=50)))
        mesh.workers[1].stage.behaviour.fail_at_step = 60
        answers = await collect(mesh.infer(token_request(PROMPTS[1], max_tokens=50)))
    assert answers[0].tokens == toy_answer(PROMPTS[1], 50)


def has_told_all(state: mesh_pb2.GetStateResponse) -> bool:
    """No step is on its way, and every stage's record of the last one has come."""
    replica = state.replicas[0]
    num_left = state.num_running + state.num_waiting + replica.num_steps_in_flight
    return num_left == 0 and len({stage.num_steps for stage in replica.stages}) == 1


async def read_at_once(mesh: ToyMesh) -> tuple[mesh_pb2.GetStateResponse, str]:
    """State and metrics of one moment, in which nothing runs.

    The slots of who ended are released by a step of its own, whose records come later than the
    answer, so that what the scheduler knows may change between two readings.
    """
    async with mesh.http() as http:
        while True:
            state = await mesh.until(has_told_all)
            metrics = (await http.get("/metrics")).text
            if (await mesh.state()).replicas[0].scheduler == state.replicas[0].scheduler:
                return state, metrics


async def test_policy_adaptive_thinks_aloud_on_the_metrics_and_in_the_state(
    toy_folder: Path,
) -> None:
    async with toy_mesh(toy_folder, policy="adaptive") as mesh:
        await mesh.until_ready()
        await collect(mesh.infer(token_request(PROMPTS[0], max_tokens=50)))
        state, metrics = await read_at_once(mesh)
    thinks = state.replicas[0].scheduler
    assert (thinks.policy, len(thinks.stages)) == ("adaptive", 2)
    # The fake stages report 0.3 s for every step.
    assert thinks.actual_seconds == pytest.approx(0.3)
    assert thinks.decisions.cycles > 10
    assert sum(stage.num_records for stage in thinks.stages) >= 2 * 50
    idle_seconds = sum(stage.idle_seconds for stage in state.replicas[0].stages)
    bubbles = thinks.bubbles
    by_stage = bubbles.starved + bubbles.fill + bubbles.imbalance + bubbles.exposed_send
    # The canary's steps are not the scheduler's.
    assert 0.9 * idle_seconds < by_stage + bubbles.coordinator <= idle_seconds
    lines = metrics.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    actual = 'stagemesh_scheduler_actual_seconds{replica="0"}'
    assert float(values[actual]) == pytest.approx(thinks.actual_seconds)
    starved = 'stagemesh_scheduler_bubble_seconds_total{cause="starved",replica="0"}'
    assert float(values[starved]) == pytest.approx(bubbles.starved)
    cost = 'stagemesh_scheduler_stage_cost_seconds{coefficient="fixed",replica="0",stage="1"}'
    assert float(values[cost]) == pytest.approx(thinks.stages[1].fixed)
