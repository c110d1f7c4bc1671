"""`stagemesh node`: the workers of one machine under one supervisor."""

import json
import signal
import time
import urllib.request

import pytest

from stagemesh import Client, GenerationRequest, TokenIds
from stagemesh.launcher.ports import reserve
from tests.integration.processes import POLL_SECONDS, Mesh, assert_all_end, running_command
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.independent]

REQUEST = GenerationRequest(prompts=(TokenIds((5, 6, 7)),), max_tokens=8, ignore_eos=True)


def test_node_runs_its_workers_and_starts_a_dead_one_again(tiny_chat: TinyChat) -> None:
    api, http, mesh_address = (reserve("127.0.0.1:0") for _ in range(3))
    coordinator = ("coordinator", str(tiny_chat.model.folder), "--pp", "2", "--kv-memory", "64MiB")
    apis = ("--grpc", api, "--http", http, "--mesh", mesh_address)
    node = ("node", "--coordinator", mesh_address, "--workers", "2", "--threads", "1")
    with (
        running_command(*coordinator, *apis) as command,
        running_command(*node, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as workers,
    ):
        command.log.wait_for("replica_serving")
        mesh = Mesh(command, api, http)
        before = mesh.ask(REQUEST).token_ids()
        died, stays = workers.descendants()
        died.kill()
        workers.log.wait_for("was killed by signal 9; restarting it")
        assert mesh.ask(REQUEST).token_ids() == before
        with Client(api) as client:
            pids = {worker.pid for worker in client.state().workers}
        assert stays.pid in pids
        assert died.pid not in pids
        children = workers.descendants()
        workers.signal(signal.SIGTERM)
        assert workers.wait() == 0
        assert_all_end(children)
        command.signal(signal.SIGTERM)
        assert command.wait() == 0


def test_node_kills_a_frozen_worker_and_starts_another(tiny_chat: TinyChat) -> None:
    """Case 9 (vllm#45414): a process that is there and does nothing, on a node of its own."""
    api, http, mesh_address = (reserve("127.0.0.1:0") for _ in range(3))
    coordinator = ("coordinator", str(tiny_chat.model.folder), "--kv-memory", "64MiB")
    apis = ("--grpc", api, "--http", http, "--mesh", mesh_address)
    node = ("node", "--coordinator", mesh_address, "--workers", "1", "--threads", "1")
    with (
        running_command(*coordinator, *apis) as command,
        running_command(*node, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0") as workers,
    ):
        command.log.wait_for("replica_serving")
        mesh = Mesh(command, api, http)
        before = mesh.ask(REQUEST).token_ids()
        (frozen,) = workers.descendants()
        until_probed(http)
        frozen.suspend()
        workers.log.wait_for("worker 0 no longer responds: killed")
        assert mesh.ask(REQUEST).token_ids() == before
        (worker,) = mesh.state().workers
        assert worker.pid != frozen.pid
        assert worker.pid in {child.pid for child in workers.descendants()}


def until_probed(http: str) -> None:
    """Waits until the only worker's metrics count a health probe."""
    with urllib.request.urlopen(f"http://{http}/sd", timeout=10) as response:
        (address,) = [target for each in json.load(response) for target in each["targets"]]
    probe = 'code="OK",method="/grpc.health.v1.Health/Check"'
    metrics = ""
    while probe not in metrics:
        time.sleep(POLL_SECONDS)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
            metrics = response.read().decode()


def test_node_that_cannot_listen_where_it_is_told_says_so() -> None:
    node = ("node", "--coordinator", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    with running_command(*node, "--metrics", "192.0.2.1:9101") as command:
        assert command.wait() == 3
        assert "192.0.2.1:9101" in "\n".join(command.log.lines)
