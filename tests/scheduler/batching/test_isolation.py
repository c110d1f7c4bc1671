"""Isolation of one sequence until a restart or reset."""

import pytest

from runtime.protocol.step import Step
from tests.scheduler.mesh_model import Mesh, make_limits, make_request


def holders(mesh: Mesh, step: Step | None) -> list[int]:
    """The ids of the sequences in a step."""
    assert step is not None
    return [mesh.scheduler.sequence_in_slot(chunk.slot) for chunk in step.chunks]


@pytest.mark.parametrize("num_turns", range(5))
def test_isolated_sequence_runs_alone_and_the_others_get_the_same_tokens_after(
    num_turns: int,
) -> None:
    mesh = Mesh(make_limits(max_step_tokens=6, num_steps_in_flight=3))
    for sequence_id in range(4):
        mesh.add(make_request(sequence_id, prompt=5, max_tokens=6))
    for _ in range(num_turns):
        mesh.send_all()
        mesh.receive()
    mesh.scheduler.isolate(2)
    mesh.scheduler.check_integrity()
    mesh.add(make_request(4))
    assert mesh.scheduler.num_running <= 1
    for _ in range(3):
        if (step := mesh.send()) is not None and step.chunks:
            assert holders(mesh, step) == [2]
    while mesh.scheduler.num_steps_in_flight:
        mesh.receive()
    mesh.scheduler.isolate(None)
    mesh.finish()


def test_restart_ends_the_isolation() -> None:
    mesh = Mesh(make_limits())
    for sequence_id in range(2):
        mesh.add(make_request(sequence_id))
    mesh.scheduler.isolate(1)
    mesh.restart(make_limits())
    assert holders(mesh, mesh.send()) == [0, 1]
    mesh.finish()
