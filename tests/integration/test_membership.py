"""Workers that come and go under load, in real processes: no request is lost, no token another."""

import shutil
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psutil
import pytest

from stagemesh import Client, GenerationRequest, StagemeshRpcError, TokenIds
from tests.conftest import MESH_OPTIONS
from tests.integration.processes import run_command, serving
from tests.integration.separate import separate_mesh
from tests.integration.tiny_chat import TinyChat, assert_greedy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.independent,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

PROMPT = (5, 6, 7)
COORDINATOR_OPTIONS = ("--pp", "2", *MESH_OPTIONS)


def request(prompt: tuple[int, ...], max_tokens: int, request_id: str = "") -> GenerationRequest:
    """Greedy, to its length."""
    return GenerationRequest(
        prompts=(TokenIds(prompt),),
        max_tokens=max_tokens,
        ignore_eos=True,
        request_id=request_id,
    )


def ask_until(done: Event, target: str, number: int) -> list[tuple[int, ...]]:
    """One client that asks the same over and over; its answers."""
    answers = []
    with Client(target) as client:
        while not done.is_set():
            updates = client.infer(request((*PROMPT, number), 100), timeout_seconds=90)
            answers.append(tuple(token.id for update in updates for token in update.tokens))
    return answers


def run_clients(target: str, during: Callable[[], None]) -> list[list[tuple[int, ...]]]:
    """The answers of three clients that ask while `during` runs."""
    done = Event()
    with ThreadPoolExecutor(3) as threads:
        running: list[Future[list[tuple[int, ...]]]] = [
            threads.submit(ask_until, done, target, number) for number in range(3)
        ]
        try:
            during()
        finally:
            done.set()
        return [each.result() for each in running]


def test_every_worker_is_replaced_under_load_and_no_request_is_lost(tiny_chat: TinyChat) -> None:
    """Case 16 (TGI#2593): two workers stopped, two drained by an operator."""
    with separate_mesh(str(tiny_chat.model.folder), *COORDINATOR_OPTIONS) as mesh:
        coordinator = mesh.start_coordinator()
        workers = [mesh.start_worker() for _ in range(3)]
        mesh.until_ready(3)

        def replace_all() -> None:
            for number, worker in enumerate(workers):
                if number % 2:
                    worker.signal(signal.SIGTERM)
                else:
                    address = next(
                        each.address
                        for each in mesh.until_ready(3).workers
                        if each.pid == worker.process.pid
                    )
                    drained = run_command("drain", address, "--target", mesh.mesh)
                    assert drained.stdout == f"{address} has left\n", drained.stderr
                assert worker.wait() == 0, "\n".join(worker.log.lines)
                mesh.start_worker()
                mesh.until_ready(3)

        answers = run_clients(mesh.target, replace_all)
        coordinator.assert_idle()
    for number, of_client in enumerate(answers):
        assert of_client
        assert len(set(of_client)) == 1
        assert_greedy(tiny_chat.model, (*PROMPT, number), of_client[0])


def test_coordinator_restarts_workers_keep_their_weights_and_clients_ask_again(
    tiny_chat: TinyChat, tmp_path: Path
) -> None:
    """Case 18 (parallax, exo): a stream that has begun ends with an error, never silently."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tiny_chat.model.folder, elsewhere)
    with separate_mesh(str(tiny_chat.model.folder), *COORDINATOR_OPTIONS) as mesh:
        first = mesh.start_coordinator()
        # The same files, on another path.
        commands = [mesh.start_worker(), mesh.start_worker("--model-path", str(elsewhere))]
        before = mesh.until_ready(2)
        with Client(mesh.target) as client, ThreadPoolExecutor(1) as threads:
            begun = client.infer(request(PROMPT, 4000))
            next(begun)
            for worker in before.workers:  # so that the next request cannot have a token yet
                psutil.Process(worker.pid).suspend()
            waiting = threads.submit(ask_once, mesh.target, request((9, 9), 50, "the same id"))
            mesh.until(lambda state: state.num_running + state.num_waiting == 2)
            first.command.process.kill()
            for worker in before.workers:
                psutil.Process(worker.pid).resume()
            with pytest.raises(StagemeshRpcError, match="no mesh answers"):
                list(begun)
            second = mesh.start_coordinator()
            after = mesh.until_ready(2)
            assert len(waiting.result()) == 50
        assert_greedy(tiny_chat.model, (9, 9), waiting.result())
        assert {worker.pid for worker in after.workers} == {worker.pid for worker in before.workers}
        for command in commands:  # losses are logged
            assert "num_sequences=0" not in command.log.wait_for("epoch_failed")
        kept = [line for line in second.command.log.lines if "part_kept" in line]
        assert len(kept) == 2
        assert not any("part_loaded" in line for line in second.command.log.lines)


def test_worker_that_does_not_come_back_is_made_do_without_until_another_comes(
    tiny_chat: TinyChat,
) -> None:
    """Case 16 (TGI#2593): there is no spare, but the model fits the worker that is left."""
    options = (*COORDINATOR_OPTIONS, "--replan-after", "0.5")
    with separate_mesh(str(tiny_chat.model.folder), *options) as mesh:
        coordinator = mesh.start_coordinator()
        mesh.start_worker()
        victim = mesh.start_worker()
        mesh.until_ready(2)
        with Client(mesh.target) as client:
            updates = client.infer(request(PROMPT, 600), timeout_seconds=120)
            first = next(updates)
            victim.process.kill()
            mesh.until(lambda state: state.ready and len(state.replicas[0].stages) == 1)
            mesh.start_worker()
            mesh.until(lambda state: state.ready and len(state.replicas[0].stages) == 2)
            tokens = tuple(token.id for update in (first, *updates) for token in update.tokens)
        coordinator.assert_idle()
    assert len(tokens) == 600
    assert_greedy(tiny_chat.model, PROMPT, tokens)


def ask_once(target: str, asked: GenerationRequest) -> tuple[int, ...]:
    """The tokens of one answer."""
    with Client(target) as client:
        updates = client.infer(asked, timeout_seconds=90)
        return tuple(token.id for update in updates for token in update.tokens)


def test_frozen_worker_is_noticed_and_a_new_one_takes_its_place(tiny_chat: TinyChat) -> None:
    """Case 9 (vllm#45414): a worker that is alive and does nothing."""
    folder = str(tiny_chat.model.folder)
    with serving(folder, "--pp", "2", *MESH_OPTIONS) as mesh, Client(mesh.target) as client:
        updates = client.infer(request(PROMPT, 600), timeout_seconds=120)
        first = next(updates)
        frozen = client.state().workers[1].pid
        psutil.Process(frozen).suspend()
        rest = list(updates)
        tokens = tuple(token.id for update in (first, *rest) for token in update.tokens)
        assert len(tokens) == 600
        assert_greedy(tiny_chat.model, PROMPT, tokens)
        mesh.command.log.wait_for("did not rejoin the mesh: killed")
        assert frozen not in {worker.pid for worker in client.state().workers}
        mesh.stop()


def leave_early_and_run_late(target: str) -> None:
    """Case 6 (sglang#29405): what a client gave up, or had no time for, leaks on no rank."""
    with Client(target) as client:
        updates = client.infer(request(PROMPT, 4000))
        next(updates)
        updates.close()
        with pytest.raises(StagemeshRpcError) as caught:
            list(client.infer(request(PROMPT, 4000), timeout_seconds=0.5))
    assert caught.value.code == "deadline_exceeded"


@pytest.mark.parametrize(
    "layout",
    [
        ("--pp", "2", "--tp", "2"),
        ("--tp", "2", "--dp", "2"),
        ("--pp", "2", "--tp", "2,1", "--dp", "2"),
    ],
    ids=["tp+pp", "tp+dp", "tp+pp+dp"],
)
def test_hybrid_layout_gives_the_tokens_of_one_process(
    tiny_chat: TinyChat, layout: tuple[str, ...]
) -> None:
    prompts = [(*PROMPT, number) for number in range(6)]
    with serving(str(tiny_chat.model.folder), *layout, *MESH_OPTIONS) as mesh:
        with ThreadPoolExecutor(len(prompts)) as threads:
            answers = list(
                threads.map(lambda each: ask_once(mesh.target, request(each, 60)), prompts)
            )
        leave_early_and_run_late(mesh.target)
        mesh.assert_idle()
        mesh.stop()
    for prompt, tokens in zip(prompts, answers, strict=True):
        assert_greedy(tiny_chat.model, prompt, tokens)
