"""Meshes of real containers on one and four nodes: kill, network partition, rolling upgrade.

`make test-compose` runs it; its name keeps it out of other runs, because it builds an image.
"""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from stagemesh import Client
from stagemesh.launcher.ports import reserve
from tests.compose.answers import ANSWER, REQUEST, ask, asking, rest_of, some_of, streaming
from tests.compose.containers import (
    ROOT,
    Node,
    assert_idle,
    build_image,
    certificates,
    docker,
    network,
    node,
    wait_for_state,
    why_no_engine,
)

pytestmark = pytest.mark.timeout(900)

RUN = f"stagemesh-test-{os.getpid()}"
NUM_STAGES = 3


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """Builds the image under test; fails with the reason if there is no Docker engine."""
    if reason := why_no_engine():
        pytest.exit(reason, returncode=1)
    build_image()


@pytest.fixture(scope="class")
def api() -> str:
    """A free address of this machine."""
    return reserve("127.0.0.1:0")


@pytest.fixture(scope="class")
def http_api() -> str:
    """A second free address."""
    return reserve("127.0.0.1:0")


@pytest.fixture(scope="class")
def single(api: str, http_api: str) -> Iterator[Node]:
    """A mesh on one node with default settings."""
    with node(
        f"{RUN}-single",
        STAGEMESH_GRPC=api,
        STAGEMESH_HTTP=http_api,
        STAGEMESH_NETWORK=f"{RUN}-single",
    ) as one:
        one.up("--wait")
        yield one


def worker_node(name: str, network_name: str, certs: Path) -> AbstractContextManager[Node]:
    """A node with one worker, whose grace time lets a spare take its place."""
    return node(
        f"{RUN}-{name}",
        COMPOSE_PROFILES="worker",
        STAGEMESH_COORDINATOR="coordinator:50051",
        STAGEMESH_WORKERS="1",
        STAGEMESH_THREADS="1",
        STAGEMESH_GRACE="60",
        STAGEMESH_STOP_AFTER="70s",
        STAGEMESH_SECRETS=str(certificates(certs, name, "worker")),
        STAGEMESH_TLS_DIR="/secrets",
        **on_network(network_name),
    )


def on_network(name: str) -> dict[str, str]:
    """Settings of a node on an existing network, with TLS on all links."""
    return {
        "STAGEMESH_NETWORK": name,
        "STAGEMESH_NETWORK_EXTERNAL": "true",
        "STAGEMESH_INSECURE_MESH": "false",
    }


@pytest.fixture(scope="class")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the mesh's certificate authority."""
    return tmp_path_factory.mktemp("certs")


@pytest.fixture(scope="class")
def spread(api: str, http_api: str, certs: Path) -> Iterator[list[Node]]:
    """A coordinator and three workers, each a Compose project, on a shared network."""
    with ExitStack() as stack:
        shared = stack.enter_context(network(f"{RUN}-shared"))
        head = node(
            f"{RUN}-head",
            COMPOSE_PROFILES="coordinator",
            STAGEMESH_PP=str(NUM_STAGES),
            STAGEMESH_GRPC=api,
            STAGEMESH_HTTP=http_api,
            STAGEMESH_SECRETS=str(certificates(certs, "head", "coordinator")),
            STAGEMESH_TLS_DIR="/secrets",
            **on_network(shared),
        )
        workers = [worker_node(f"worker-{index}", shared, certs) for index in range(NUM_STAGES)]
        nodes = [stack.enter_context(one) for one in (head, *workers)]
        for one in nodes:
            one.up()
        for one in nodes:
            one.up("--wait")
        yield nodes


def replace_worker(worker: Node, api: str, answers: list[str]) -> None:
    """Recreates the node's container; returns once the mesh is complete and has answered."""
    worker.up("--force-recreate", "--wait")
    num_before = len(answers)
    wait_for_state(
        api,
        lambda state: (
            state.ready and len(state.workers) == NUM_STAGES + 1 and len(answers) > num_before
        ),
        "complete, and answering",
    )


class TestOneNode:
    """A mesh of `docker compose up` without options."""

    def test_up_without_options_answers_on_this_machine_only(
        self, single: Node, api: str, http_api: str
    ) -> None:
        assert ask(api) == ANSWER
        with urllib.request.urlopen(f"http://{http_api}/sd", timeout=10) as response:
            assert len(json.load(response)) == 2
        assert single.compose("port", "coordinator", "50050") == api
        assert single.compose("port", "coordinator", "8000") == http_api
        assert single.compose("ps", "--format", "{{.Ports}}", "worker").strip() == ""

    def test_worker_that_is_terminated_is_restarted_and_serves_again(
        self, single: Node, api: str
    ) -> None:
        single.compose("exec", "--index", "1", "worker", "sh", "-c", "kill -TERM 1")
        wait_for_state(api, lambda state: not state.ready, "without its worker")
        wait_for_state(api, lambda state: state.ready, "repaired")
        assert ask(api) == ANSWER

    def test_stop_lets_a_running_answer_finish(self, single: Node, api: str) -> None:
        short = replace(REQUEST, max_tokens=20)
        expected = ask(api, short)
        with Client(api) as client:
            updates = streaming(client, short)
            text = some_of(updates)
            stop = ("docker", "compose", "stop")
            with subprocess.Popen(stop, cwd=ROOT, env=single.environment()) as stopping:
                text += rest_of(updates)
                assert stopping.wait() == 0
        assert text == expected
        codes = [docker("inspect", "-f", "{{.State.ExitCode}}", one) for one in single.containers()]
        assert codes == ["0", "0", "0"]
        single.up("--wait")


class TestFourNodes:
    """A coordinator and three workers, each a Compose project, with TLS on all links."""

    def test_workers_replaced_one_after_another_under_load_lose_no_request(
        self, spread: list[Node], api: str, certs: Path
    ) -> None:
        short = replace(REQUEST, max_tokens=20)
        expected = ask(api, short)
        begin = time.time()
        with worker_node("spare", f"{RUN}-shared", certs) as spare:
            spare.up("--wait")
            with asking(api, short) as answers:
                for worker in spread[1:]:
                    replace_worker(worker, api, answers)
            with Client(api) as client:
                causes = [
                    one.cause for one in client.state().recoveries if one.ended_unix_seconds > begin
                ]
        assert set(answers) == {expected}
        assert set(causes) == {"drained"}
        assert len(causes) == NUM_STAGES

    def test_node_killed_while_answering_comes_back_and_tokens_are_equal(
        self, spread: list[Node], api: str
    ) -> None:
        assert ask(api) == ANSWER
        victim = spread[2]
        with Client(api) as client:
            updates = streaming(client)
            text = some_of(updates)
            docker("kill", *victim.containers())
            wait_for_state(api, lambda state: not state.ready, "without its worker")
            victim.up()
            assert text + rest_of(updates) == ANSWER
        assert_idle(api)

    def test_node_partitioned_while_answering_recovers_and_tokens_are_equal(
        self, spread: list[Node], api: str
    ) -> None:
        victim = spread[NUM_STAGES]
        with Client(api) as client:
            updates = streaming(client)
            text = some_of(updates)
            docker("network", "disconnect", f"{RUN}-shared", *victim.containers())
            wait_for_state(api, lambda state: not state.ready, "aware of the cut")
            docker("network", "connect", f"{RUN}-shared", *victim.containers())
            assert text + rest_of(updates) == ANSWER
        assert_idle(api)


def test_host_network_serves_at_the_configured_addresses() -> None:
    api, http_api, mesh, worker = (reserve("127.0.0.1:0") for _ in range(4))
    with node(
        f"{RUN}-host",
        COMPOSE_FILE="docker-compose.yml:deploy/host-network.yml",
        STAGEMESH_PP="1",
        STAGEMESH_GRPC=api,
        STAGEMESH_HTTP=http_api,
        STAGEMESH_MESH=mesh,
        STAGEMESH_COORDINATOR=mesh,
        STAGEMESH_WORKER_PORT=worker.rpartition(":")[2],
        STAGEMESH_INSECURE_MESH="true",
    ) as one:
        one.up("--wait")
        assert ask(api) == ANSWER
