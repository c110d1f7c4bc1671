"""A mesh's end, asked for or not: processes never outlive it, and a dead worker is replaced."""

import signal
from collections.abc import Iterator

import psutil
import pytest

from stagemesh import Client, GenerationRequest, StagemeshRpcError, TokenIds
from tests.conftest import MESH_OPTIONS
from tests.integration.processes import Mesh, assert_all_end, serving
from tests.integration.tiny_chat import TinyChat, assert_greedy

pytestmark = [pytest.mark.integration, pytest.mark.independent]

PROMPT = (5, 6, 7)
ENDLESS = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=4000, ignore_eos=True)


@pytest.fixture
def own_mesh(tiny_chat: TinyChat) -> Iterator[Mesh]:
    """A mesh that the test may end."""
    with serving(str(tiny_chat.model.folder), "--pp", "2", *MESH_OPTIONS) as mesh:
        yield mesh


@pytest.fixture
def single_stage(tiny_chat: TinyChat) -> Iterator[Mesh]:
    """A mesh of one worker that the test may end."""
    with serving(str(tiny_chat.model.folder), *MESH_OPTIONS) as mesh:
        yield mesh


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stop_signal_ends_every_process_without_noise(
    number: signal.Signals, single_stage: Mesh
) -> None:
    single_stage.stop(number)
    after = single_stage.command.log.lines
    assert after[-1] == "stopped"
    assert not any("warning" in line or "error" in line for line in after)


def test_second_interrupt_does_not_wait_for_running_requests(own_mesh: Mesh) -> None:
    children = own_mesh.command.descendants()
    with Client(own_mesh.target) as client:
        updates = client.infer(ENDLESS)
        next(updates)
        for worker in client.state().workers:  # so that the request cannot end by itself
            psutil.Process(worker.pid).suspend()
        own_mesh.command.signal(signal.SIGINT)
        own_mesh.command.log.wait_for("Ctrl-C again")
        own_mesh.command.signal(signal.SIGINT)
        own_mesh.command.wait()
        with pytest.raises(StagemeshRpcError):
            list(updates)
    # The coordinator's message after its grace time.
    assert not any("requests_cut_off" in line for line in own_mesh.command.log.lines)
    assert_all_end(children)


def test_launcher_killed_takes_its_processes_along(own_mesh: Mesh) -> None:
    children = own_mesh.command.descendants()
    assert len(children) == 3
    own_mesh.command.signal(signal.SIGKILL)
    assert own_mesh.command.wait() == -signal.SIGKILL
    assert_all_end(children)


def test_worker_killed_is_started_again_and_the_answer_goes_on(
    own_mesh: Mesh, tiny_chat: TinyChat
) -> None:
    request = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=600, ignore_eos=True)
    with Client(own_mesh.target) as client:
        updates = client.infer(request, timeout_seconds=90)
        first = next(updates)
        psutil.Process(client.state().workers[0].pid).kill()
        rest = list(updates)
    tokens = tuple(token.id for update in (first, *rest) for token in update.tokens)
    assert len(tokens) == 600
    assert_greedy(tiny_chat.model, PROMPT, tokens)
    own_mesh.command.log.wait_for("restarting it")
    own_mesh.assert_idle()
    own_mesh.stop()


def test_coordinator_killed_ends_the_mesh_with_a_message(single_stage: Mesh) -> None:
    children = single_stage.command.descendants()
    workers = {worker.pid for worker in single_stage.state().workers}
    (coordinator,) = (child for child in children if child.pid not in workers)
    coordinator.kill()
    assert single_stage.command.wait() == 1
    assert "error: coordinator was killed by signal 9" in "\n".join(single_stage.command.log.lines)
    assert_all_end(children)
