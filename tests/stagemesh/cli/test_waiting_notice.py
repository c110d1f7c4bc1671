"""Notices while an answer is delayed."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from protos import inference_pb2, mesh_pb2
from runtime.protocol.inference_codec import update_from_proto
from stagemesh import MeshState, StagemeshRpcError, Update
from stagemesh.cli.waiting_notice import WaitingNotice
from stagemesh.client.state import state_from_proto

UPDATE = update_from_proto(inference_pb2.InferResponse(text="a"))


@pytest.fixture
def state(state_message: mesh_pb2.GetStateResponse) -> MeshState:
    """The state of a mesh that is ready."""
    return state_from_proto(state_message)


class Mesh:
    """Returns these states in turn, then the last one repeatedly."""

    def __init__(self, *states: MeshState | StagemeshRpcError) -> None:
        self._states = list(states)
        self.notices: list[str] = []
        self.last_was_read = threading.Event()

    def get_state(self) -> MeshState:
        """The next state."""
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if len(self._states) == 1:
            self.last_was_read.set()
        if isinstance(state, StagemeshRpcError):
            raise state
        return state


def test_waiting_notice_of_a_starting_mesh_is_written_once_per_phase(
    state: MeshState,
) -> None:
    waiting = replace(state, ready=False, phase="waiting for workers: 1 of 2")
    loading = replace(state, ready=False, phase="loading weights")
    mesh = Mesh(waiting, waiting, loading, state)

    def updates() -> Iterator[Update]:
        yield UPDATE
        mesh.last_was_read.wait()
        yield UPDATE

    with WaitingNotice(mesh.get_state, mesh.notices.append, 0.01) as notice:
        assert list(notice.watch(updates())) == [UPDATE, UPDATE]
    assert [line.split("(")[1].split(")")[0] for line in mesh.notices] == [
        "waiting for workers: 1 of 2",
        "loading weights",
    ]
    assert all(line.startswith("\ntiny: not ready") for line in mesh.notices)


def test_waiting_notice_of_a_ready_mesh_is_not_written(state: MeshState) -> None:
    mesh = Mesh(state, state)

    def updates() -> Iterator[Update]:
        mesh.last_was_read.wait()
        yield UPDATE

    with WaitingNotice(mesh.get_state, mesh.notices.append, 0.01) as notice:
        assert list(notice.watch(updates())) == [UPDATE]
    assert mesh.notices == []
