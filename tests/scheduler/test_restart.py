"""A new epoch: every sequence waits again, and no token is lost or repeated."""

import pytest

from tests.scheduler.mesh_model import Mesh, make_limits, make_request


@pytest.mark.parametrize("num_turns", range(14))
@pytest.mark.parametrize("num_in_flight", [0, 1, 2, 3])
def test_restart_at_any_moment_gives_each_token_once(num_turns: int, num_in_flight: int) -> None:
    limits = make_limits(
        num_blocks=14, block_size=2, max_sequences=3, max_step_tokens=5, num_steps_in_flight=3
    )
    mesh = Mesh(limits)
    for sequence_id in range(5):
        mesh.add(make_request(sequence_id, prompt=3 + 2 * sequence_id, max_tokens=6))
    for _ in range(num_turns):
        mesh.send_all()
        mesh.receive()
    for _ in range(num_in_flight):
        mesh.send()
    assert mesh.restart(limits) == ()
    assert mesh.scheduler.num_running == mesh.scheduler.num_steps_in_flight == 0
    mesh.scheduler.check_integrity()
    mesh.finish()


@pytest.mark.parametrize("first_step", [0, 5])
def test_restart_begins_with_the_first_step_and_the_tokens_so_far(first_step: int) -> None:
    mesh = Mesh(make_limits(num_steps_in_flight=1))
    mesh.add(make_request(1, prompt=4, max_tokens=6))
    for _ in range(3):
        mesh.send()
        mesh.receive()
    generated = tuple(mesh.tokens[1])
    assert len(generated) == 3
    mesh.restart(make_limits(), first_step)
    step = mesh.send()
    assert step is not None
    assert step.number == first_step
    assert step.released_slots == ()
    assert step.chunks[0].token_ids == (*mesh.requests[1].prompt_ids, *generated)
    mesh.finish()


def test_restart_drops_unsent_releases() -> None:
    mesh = Mesh(make_limits())
    mesh.add(make_request(1))
    mesh.send()
    mesh.cancel(1)
    mesh.restart(make_limits())
    assert not mesh.scheduler.has_work
    assert mesh.send() is None


def test_restart_with_less_memory_returns_sequences_that_cannot_fit() -> None:
    mesh = Mesh(make_limits(num_blocks=64))
    mesh.add(make_request(1, prompt=30, max_tokens=10))
    mesh.add(make_request(2, prompt=4, max_tokens=4))
    mesh.send()
    assert mesh.restart(make_limits(num_blocks=4, block_size=4)) == (1,)
    mesh.finish()


def test_restart_with_a_context_that_is_used_up_returns_the_sequence() -> None:
    mesh = Mesh(make_limits(max_model_len=30, num_steps_in_flight=1))
    mesh.add(make_request(1, prompt=4, max_tokens=20))
    for _ in range(8):
        mesh.send()
        mesh.receive()
    assert mesh.restart(make_limits(max_model_len=12)) == (1,)
    mesh.check_idle()
