"""The contents of a microbatch."""

import pytest

from runtime.protocol.step import Step
from tests.scheduler.mesh_model import Mesh, make_limits, make_request


def decode_counts(steps: list[Step]) -> list[int]:
    return [sum(chunk.position >= 4 for chunk in step.chunks) for step in steps]


def mesh_with_decodes(num_decodes: int, num_steps_in_flight: int, max_tokens: int = 20) -> Mesh:
    """All prompts (4 tokens each) are computed and nothing is in flight."""
    limits = make_limits(
        num_blocks=400,
        max_sequences=40,
        max_step_tokens=200,
        num_steps_in_flight=num_steps_in_flight,
    )
    mesh = Mesh(limits)
    for sequence_id in range(num_decodes):
        mesh.add(make_request(sequence_id, prompt=4, max_tokens=max_tokens))
    mesh.send()
    mesh.receive()
    return mesh


@pytest.mark.parametrize(
    ("num_decodes", "num_steps_in_flight", "expected"),
    [
        (32, 4, [8, 8, 8, 8]),
        (6, 4, [2, 2, 1, 1]),
        (5, 3, [2, 2, 1]),
        (2, 4, [1, 1]),
        (7, 1, [7]),
    ],
)
def test_decodes_over_microbatches_come_out_even(
    num_decodes: int, num_steps_in_flight: int, expected: list[int]
) -> None:
    mesh = mesh_with_decodes(num_decodes, num_steps_in_flight)
    assert decode_counts(mesh.send_all()) == expected
    mesh.finish()


def test_decodes_while_sequences_come_and_go_never_exceed_their_share() -> None:
    """Case 1 (vllm#41682, #15330, #57433): all decodes in one batch, the other slots run empty."""
    mesh = mesh_with_decodes(32, num_steps_in_flight=4)
    most = 0
    for turn in range(60):
        if turn % 5 == 0:
            mesh.cancel(turn // 5)
            mesh.add(make_request(100 + turn, prompt=4, max_tokens=20))
        most = max(most, *decode_counts(mesh.send_all()), 0)
        mesh.receive()
    assert most <= 9
    mesh.finish()


def test_decodes_of_one_microbatch_stay_together() -> None:
    mesh = mesh_with_decodes(8, num_steps_in_flight=4)
    cohorts = [{chunk.slot for chunk in step.chunks} for step in mesh.send_all()]
    for turn in range(12):
        mesh.receive()
        (step,) = mesh.send_all()
        assert {chunk.slot for chunk in step.chunks} == cohorts[turn % 4]
    mesh.finish()


def test_decodes_after_a_microbatch_lost_some_are_spread_again() -> None:
    mesh = mesh_with_decodes(8, num_steps_in_flight=4)
    first, *_ = mesh.send_all()
    for chunk in first.chunks:
        mesh.cancel(mesh.scheduler.sequence_in_slot(chunk.slot))
    counts = []
    for _ in range(12):
        mesh.receive()
        counts += decode_counts(mesh.send_all())
    assert sorted(counts[-4:]) == [1, 1, 2, 2]
    mesh.finish()


def test_prompt_longer_than_the_budget_is_sent_in_successive_chunks_at_once() -> None:
    mesh = Mesh(make_limits(max_step_tokens=6, num_steps_in_flight=4))
    mesh.add(make_request(1, prompt=15))
    chunks = [step.chunks[0] for step in mesh.send_all()]
    assert [(chunk.position, len(chunk.token_ids)) for chunk in chunks] == [(0, 6), (6, 6), (12, 3)]
    assert [chunk.sample for chunk in chunks] == [False, False, True]
    mesh.finish()


def test_prompts_share_a_step_in_order_of_arrival() -> None:
    mesh = Mesh(make_limits(max_step_tokens=10))
    mesh.add(make_request(1, prompt=4, arrival=2.0))
    mesh.add(make_request(2, prompt=5, arrival=1.0))
    mesh.add(make_request(3, prompt=6, arrival=3.0))
    step = mesh.send()
    assert step is not None
    ids = [mesh.scheduler.sequence_in_slot(chunk.slot) for chunk in step.chunks]
    assert ids == [2, 1, 3]
    assert [len(chunk.token_ids) for chunk in step.chunks] == [5, 4, 1]
    mesh.finish()


def test_prompt_without_memory_is_not_overtaken() -> None:
    mesh = Mesh(make_limits(num_blocks=6, block_size=4))
    mesh.add(make_request(1, prompt=12, max_tokens=4))
    mesh.send()
    mesh.add(make_request(2, prompt=12, max_tokens=4))
    mesh.add(make_request(3, prompt=1, max_tokens=1))
    mesh.send()
    assert mesh.scheduler.num_waiting == 2
    mesh.finish()


@pytest.mark.parametrize("max_step_tokens", [1, 7, 200])
@pytest.mark.parametrize("num_steps_in_flight", [1, 2, 5])
def test_tokens_do_not_depend_on_chunk_size_or_steps_in_flight(
    max_step_tokens: int, num_steps_in_flight: int
) -> None:
    limits = make_limits(max_step_tokens=max_step_tokens, num_steps_in_flight=num_steps_in_flight)
    mesh = Mesh(limits)
    for sequence_id in range(6):
        mesh.add(make_request(sequence_id, prompt=1 + 4 * sequence_id, max_tokens=7))
    mesh.finish()
