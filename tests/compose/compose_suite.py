"""Meshes of real containers, on one node and on four, through a kill and a cut network.

`make test-compose` runs it; its name keeps it out of other runs, because it builds an image.
"""

import json
import os
import subprocess
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from stagemesh import Chat, ChatMessage, Client, GenerationRequest, Update
from stagemesh.ports import reserve
from tests.compose.containers import (
    ROOT,
    Node,
    build_image,
    docker,
    network,
    node,
    wait_for_state,
    why_no_engine,
)

pytestmark = pytest.mark.timeout(900)

RUN = f"stagemesh-test-{os.getpid()}"
REQUEST = GenerationRequest(
    prompts=(Chat((ChatMessage("user", "Give me three tips for staying healthy."),)),),
    max_tokens=100,
)
# What Transformers answers, in float32.
ANSWER = (
    "1. Stay hydrated: Drink plenty of water, especially during the heat. 2. Eat a balanced diet: "
    "A balanced diet can help your body stay healthy. 3. Get enough sleep: Make sure you're "
    "getting enough sleep each night."
)
ANSWER_SECONDS = 240.0
NUM_STAGES = 3


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """The image under test; says clearly when there is no engine to build it."""
    if reason := why_no_engine():
        pytest.exit(reason, returncode=1)
    build_image()


@pytest.fixture(scope="class")
def door() -> str:
    """A free address of this machine."""
    return reserve("127.0.0.1:0")


@pytest.fixture(scope="class")
def http_door() -> str:
    """Another one."""
    return reserve("127.0.0.1:0")


@pytest.fixture(scope="class")
def single(door: str, http_door: str) -> Iterator[Node]:
    """A whole mesh on one node, as the defaults have it."""
    with node(
        f"{RUN}-single",
        STAGEMESH_GRPC=door,
        STAGEMESH_HTTP=http_door,
        STAGEMESH_NETWORK=f"{RUN}-single",
    ) as one:
        one.up("--wait")
        yield one


@pytest.fixture(scope="class")
def spread(door: str, http_door: str) -> Iterator[list[Node]]:
    """A coordinator and three workers, each a project of its own on a network that they share."""
    with ExitStack() as stack:
        shared = stack.enter_context(network(f"{RUN}-shared"))
        common = {"STAGEMESH_NETWORK": shared, "STAGEMESH_NETWORK_EXTERNAL": "true"}
        head = node(
            f"{RUN}-head",
            COMPOSE_PROFILES="coordinator",
            STAGEMESH_PP=str(NUM_STAGES),
            STAGEMESH_GRPC=door,
            STAGEMESH_HTTP=http_door,
            **common,
        )
        workers = [
            node(
                f"{RUN}-worker-{index}",
                COMPOSE_PROFILES="worker",
                STAGEMESH_COORDINATOR="coordinator:50051",
                STAGEMESH_WORKERS="1",
                STAGEMESH_THREADS="1",
                **common,
            )
            for index in range(NUM_STAGES)
        ]
        nodes = [stack.enter_context(one) for one in (head, *workers)]
        for one in nodes:
            one.up()
        for one in nodes:
            one.up("--wait")
        yield nodes


def streaming(
    client: Client, request: GenerationRequest = REQUEST
) -> Generator[Update, None, None]:
    """The request's updates."""
    return client.infer(request, timeout_seconds=ANSWER_SECONDS)


def ask(door: str, request: GenerationRequest = REQUEST) -> str:
    """The whole answer."""
    with Client(door) as client:
        return rest_of(streaming(client, request))


def some_of(updates: Generator[Update, None, None]) -> str:
    """The first few updates' text, so that the rest is still to come."""
    return "".join(next(updates).text for _ in range(5))


def rest_of(updates: Generator[Update, None, None]) -> str:
    """All that is still to come."""
    return "".join(update.text for update in updates)


class TestOneNode:
    """A mesh as a bare `docker compose up` makes it."""

    def test_bare_up_answers_on_this_machine_only(
        self, single: Node, door: str, http_door: str
    ) -> None:
        assert ask(door) == ANSWER
        with urllib.request.urlopen(f"http://{http_door}/sd", timeout=10) as response:
            assert len(json.load(response)) == 2
        assert single.compose("port", "coordinator", "50050") == door
        assert single.compose("port", "coordinator", "8000") == http_door
        assert single.compose("ps", "--format", "{{.Ports}}", "worker").strip() == ""

    def test_worker_told_to_end_is_restarted_and_serves_again(
        self, single: Node, door: str
    ) -> None:
        single.compose("exec", "--index", "1", "worker", "sh", "-c", "kill -TERM 1")
        wait_for_state(door, lambda state: not state.ready, "without its worker")
        wait_for_state(door, lambda state: state.ready, "repaired")
        assert ask(door) == ANSWER

    def test_stop_lets_a_running_answer_finish(self, single: Node, door: str) -> None:
        short = replace(REQUEST, max_tokens=20)
        expected = ask(door, short)
        with Client(door) as client:
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
    """A coordinator and three workers, each a project of its own."""

    def test_node_killed_while_answering_comes_back_and_tokens_are_equal(
        self, spread: list[Node], door: str
    ) -> None:
        assert ask(door) == ANSWER
        victim = spread[2]
        with Client(door) as client:
            updates = streaming(client)
            text = some_of(updates)
            docker("kill", *victim.containers())
            wait_for_state(door, lambda state: not state.ready, "without its worker")
            victim.up()
            assert text + rest_of(updates) == ANSWER
        assert_idle(door)

    def test_node_cut_off_while_answering_is_healed_and_tokens_are_equal(
        self, spread: list[Node], door: str
    ) -> None:
        victim = spread[NUM_STAGES]
        with Client(door) as client:
            updates = streaming(client)
            text = some_of(updates)
            docker("network", "disconnect", f"{RUN}-shared", *victim.containers())
            wait_for_state(door, lambda state: not state.ready, "aware of the cut")
            docker("network", "connect", f"{RUN}-shared", *victim.containers())
            assert text + rest_of(updates) == ANSWER
        assert_idle(door)


def test_host_network_serves_at_the_addresses_that_it_is_told() -> None:
    door, http_door, mesh, worker = (reserve("127.0.0.1:0") for _ in range(4))
    with node(
        f"{RUN}-host",
        COMPOSE_FILE="docker-compose.yml:deploy/host-network.yml",
        STAGEMESH_PP="1",
        STAGEMESH_GRPC=door,
        STAGEMESH_HTTP=http_door,
        STAGEMESH_MESH=mesh,
        STAGEMESH_COORDINATOR=mesh,
        STAGEMESH_WORKER_PORT=worker.rpartition(":")[2],
        STAGEMESH_INSECURE_MESH="true",
    ) as one:
        one.up("--wait")
        assert ask(door) == ANSWER


def assert_idle(door: str) -> None:
    """No request, KV block or slot is held, at the latest after a moment."""
    wait_for_state(
        door,
        lambda state: (
            state.num_running == state.num_waiting == 0
            and all(
                replica.num_kv_blocks_used == replica.num_slots_used == 0
                for replica in state.replicas
            )
        ),
        "idle",
    )
