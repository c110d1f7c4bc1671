"""What is said while an answer stays out."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from protos import inference_pb2, mesh_pb2
from stagemesh import MeshState, StagemeshRpcError, Update
from stagemesh.cli.silence import SilenceWatch
from stagemesh.client.generation_codec import update_from_proto
from stagemesh.client.state import state_from_proto

UPDATE = update_from_proto(inference_pb2.InferResponse(text="a"))


@pytest.fixture
def state(state_message: mesh_pb2.GetStateResponse) -> MeshState:
    """A mesh that serves."""
    return state_from_proto(state_message)


class Mesh:
    """Answers the watch with these states in turn, the last one for ever."""

    def __init__(self, *states: MeshState | StagemeshRpcError) -> None:
        self._states = list(states)
        self.said: list[str] = []
        self.is_at_the_last = threading.Event()

    def ask(self) -> MeshState:
        """The next state."""
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if len(self._states) == 1:
            self.is_at_the_last.set()
        if isinstance(state, StagemeshRpcError):
            raise state
        return state


def test_silence_of_a_broken_mesh_is_explained_once_for_each_phase(state: MeshState) -> None:
    waiting = replace(state, ready=False, phase="waiting for workers: 1 of 2")
    loading = replace(state, ready=False, phase="loading weights")
    mesh = Mesh(waiting, waiting, loading, state)

    def updates() -> Iterator[Update]:
        yield UPDATE
        mesh.is_at_the_last.wait()
        yield UPDATE

    with SilenceWatch(mesh.ask, mesh.said.append, 0.01) as watch:
        assert list(watch.through(updates())) == [UPDATE, UPDATE]
    assert [line.split("(")[1].split(")")[0] for line in mesh.said] == [
        "waiting for workers: 1 of 2",
        "loading weights",
    ]
    assert all(line.startswith("\ntiny: not ready") for line in mesh.said)


def test_silence_of_a_mesh_that_serves_is_not_disturbed(state: MeshState) -> None:
    mesh = Mesh(state, state)

    def updates() -> Iterator[Update]:
        mesh.is_at_the_last.wait()
        yield UPDATE

    with SilenceWatch(mesh.ask, mesh.said.append, 0.01) as watch:
        assert list(watch.through(updates())) == [UPDATE]
    assert mesh.said == []
