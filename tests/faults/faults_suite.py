"""The whole of the fault tests: every phase, every link, every kind of frame that should not be.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from protos import mesh_pb2, stage_pb2
from runtime.rpc import dial_blocking, split_address
from runtime.tls import Role
from runtime.version import PROTOCOL_VERSION
from stagemesh import Client, StagemeshRpcError
from stagemesh.certificates import NodeRequest, make_certificates
from stagemesh.fault_proxy import Accident, Faults
from tests.faults.asking import REQUESTS, Asked, asking, disturbed, request_of
from tests.faults.cluster import Cluster, WorkerProcess, cluster_of
from tests.faults.proxies import proxy_to
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FREEZE_SECONDS = 5.0
# Three pings, and some.
IDLE_SECONDS = 35.0
STAGES = (0, 1)


def kill(worker: WorkerProcess) -> None:
    """kill -9."""
    psutil.Process(worker.pid).kill()


def spare_of(cluster: Cluster) -> WorkerProcess:
    """The worker that no stage uses."""
    used = {cluster.at_stage(stage).pid for stage in STAGES}
    (spare,) = (worker for worker in cluster.workers if worker.pid not in used)
    return spare


class TestKills:
    """kill -9 at each phase (decode and prefill are in `test_faults.py`)."""

    def test_spare_killed_while_it_loads_is_replaced(self, cluster: Cluster) -> None:
        spare, victim = spare_of(cluster), cluster.at_stage(1)
        with asking(cluster, *REQUESTS[:2]) as asked:
            asked[0].wait_for_tokens(3)
            spare.inward.set(Faults(is_stalled=True))
            kill(victim)
            cluster.wait_until(lambda state: state.phase.startswith("loading"), "loading")
            kill(spare)
            cluster.start_worker()

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_in_the_middle_of_a_send_costs_no_token(
        self, stage: int, cluster: Cluster
    ) -> None:
        victim, receiver = cluster.at_stage(stage), cluster.at_stage(1)
        with asking(cluster, REQUESTS[2]) as (asked,):
            receiver.inward.set(Faults(bytes_per_second=40_000))
            receiver.inward.wait_for_bytes(20_000)
            assert not asked.tokens
            kill(victim)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_while_idle_is_replaced_before_the_next_request(
        self, stage: int, cluster: Cluster
    ) -> None:
        epoch = cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch
        kill(cluster.at_stage(stage))
        cluster.wait_until(
            lambda state: state.ready and state.replicas[0].epoch != epoch, "in another epoch"
        )
        with asking(cluster, *REQUESTS[:2]):
            pass

    def test_both_stages_killed_at_once_cost_no_token(self, cluster: Cluster) -> None:
        def disturb() -> None:
            for victim in [cluster.at_stage(stage) for stage in STAGES]:
                kill(victim)
            cluster.start_worker()

        disturbed(cluster, disturb)

    def test_stage_killed_while_another_is_replaced_costs_no_token(self, cluster: Cluster) -> None:
        victims = [cluster.at_stage(stage) for stage in STAGES]

        def disturb() -> None:
            kill(victims[0])
            cluster.wait_until(lambda state: not state.ready, "without its stage")
            kill(victims[1])
            cluster.start_worker()

        disturbed(cluster, disturb)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_killed_while_draining_ends_the_answer_with_a_word(
        self, stage: int, cluster: Cluster
    ) -> None:
        # parallax, exo: a started stream is silently cut.
        victim = cluster.at_stage(stage)
        asked = Asked(request_of(max_tokens=4000), cluster.target)
        asked.start()
        asked.wait_for_tokens(3)
        assert cluster.coordinator is not None
        cluster.coordinator.signal(signal.SIGTERM)
        kill(victim)
        assert cluster.coordinator.wait() == 0
        with suppress(StagemeshRpcError):
            assert len(asked.result()) == 4000
        assert asked.error is None or asked.error.code in ("shutting_down", "unreachable")
        cluster.start_coordinator()

    def test_coordinator_killed_while_answering_is_told_and_asked_again(
        self, cluster: Cluster
    ) -> None:
        asked = Asked(request_of(max_tokens=2000), cluster.target)
        asked.start()
        asked.wait_for_tokens(3)
        assert cluster.coordinator is not None
        cluster.coordinator.signal(signal.SIGKILL)
        cluster.coordinator.wait()
        with pytest.raises(Exception, match="no mesh answers"):
            asked.result()
        cluster.start_coordinator()
        with asking(cluster, *REQUESTS):
            cluster.wait_until(lambda state: state.ready, "serving again")


class TestFrozen:
    """SIGSTOP: a process that is there and does nothing."""

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_frozen_for_a_while_costs_no_token(self, stage: int, cluster: Cluster) -> None:
        victim = psutil.Process(cluster.at_stage(stage).pid)

        def disturb() -> None:
            victim.suspend()
            time.sleep(FREEZE_SECONDS)  # is the fault
            victim.resume()

        disturbed(cluster, disturb)

    @pytest.mark.parametrize("stage", STAGES)
    def test_stage_frozen_for_ever_is_replaced(self, stage: int, cluster: Cluster) -> None:
        # vllm#45414, #45388: nothing moves and nobody notices.
        victim = cluster.at_stage(stage)
        try:
            disturbed(cluster, psutil.Process(victim.pid).suspend)
        finally:
            kill(victim)


LINKS = ("coordinator to stage 0", "stage 0 to stage 1", "stage 1 to coordinator")
FAULTS = {
    "delay": Faults(delay_seconds=0.05),
    "throttle": Faults(bytes_per_second=30_000),
    "stall": Faults(is_stalled=True),
    "drop": Faults(accidents=((2000, Accident.DROP),)),
    "truncate": Faults(accidents=((2000, Accident.TRUNCATE),)),
    "duplicate": Faults(accidents=((2000, Accident.DUPLICATE),)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("link", LINKS)
def test_bad_link_costs_no_token(link: str, fault: str, cluster: Cluster) -> None:
    first, last = cluster.at_stage(0), cluster.at_stage(1)
    proxies = dict(zip(LINKS, (first.inward, last.inward, last.outward), strict=True))
    disturbed(cluster, lambda: proxies[link].set(FAULTS[fault]))


class TestUnderTls:
    """What only a link with TLS notices, and what comes to its ports."""

    @pytest.fixture(scope="class")
    def node(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Certificates for every role."""
        folder = tmp_path_factory.mktemp("certificates")
        request = NodeRequest("local", tuple(Role), ("127.0.0.1",), timedelta(days=1))
        make_certificates(folder, request, is_renewal=False)
        return folder / "local"

    @pytest.fixture(scope="class")
    def secure(self, node: Path, tiny_chat: TinyChat) -> Iterator[Cluster]:
        """A mesh whose links are mutual TLS."""
        security = ("--tls-dir", str(node))
        with cluster_of(str(tiny_chat.model.folder), security=security) as cluster:
            yield cluster

    @pytest.mark.parametrize("accident", [Accident.CORRUPT, Accident.DUPLICATE])
    @pytest.mark.parametrize("stage", STAGES)
    def test_changed_bytes_are_noticed_and_cost_no_token(
        self, accident: Accident, stage: int, secure: Cluster
    ) -> None:
        faults = Faults(accidents=((2000, accident),))
        disturbed(secure, lambda: secure.at_stage(stage).inward.set(faults))
        secure.refill()

    def test_garbage_on_every_port_changes_nothing(self, secure: Cluster) -> None:
        throw_garbage(secure)


def throw_garbage(cluster: Cluster) -> None:
    """At every port that a process of the mesh listens on, with requests in flight."""
    assert cluster.coordinator is not None
    pids = [cluster.coordinator.process.pid, *(worker.pid for worker in cluster.workers)]
    ports = {
        connection.laddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert split_address(cluster.target)[1] in ports
    with asking(cluster, *REQUESTS):
        for port in ports:
            for head in (b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""):
                with (
                    socket.create_connection(("127.0.0.1", port)) as connection,
                    suppress(ConnectionError),
                ):
                    connection.sendall(head + os.urandom(5000))


def test_garbage_on_every_port_without_tls_changes_nothing(cluster: Cluster) -> None:
    throw_garbage(cluster)


class TestForgedFrames:
    """Streams of strangers to a stage that serves: each costs itself alone."""

    @pytest.mark.parametrize(
        ("counter_offset", "frame", "code"),
        [
            (-1, stage_pb2.Frame(last=True), "stale_epoch"),
            (1, stage_pb2.Frame(last=True), "stale_epoch"),
            (0, stage_pb2.Frame(sender_rank=0, step=10**9, last=True), "frame"),
            (0, stage_pb2.Frame(sender_rank=7, last=True), "frame"),
        ],
        ids=["earlier_epoch", "later_epoch", "second_stream", "unknown_rank"],
    )
    def test_forged_frame_is_refused_and_costs_no_token(
        self, counter_offset: int, frame: stage_pb2.Frame, code: str, cluster: Cluster
    ) -> None:
        worker = cluster.at_stage(1)
        with dial_blocking(worker.inward.address) as channel, asking(cluster, *REQUESTS[:2]):
            status: Any = channel.unary_unary(
                "/stagemesh.v1.Stage/Status",
                stage_pb2.StatusRequest.SerializeToString,
                stage_pb2.StatusResponse.FromString,
            )
            epoch = status(stage_pb2.StatusRequest(), timeout=10).epoch
            forged = stage_pb2.Frame()
            forged.CopyFrom(frame)
            forged.epoch.CopyFrom(epoch)
            forged.epoch.counter += counter_offset
            forward: Any = channel.stream_stream(
                "/stagemesh.v1.Stage/Forward", stage_pb2.Frame.SerializeToString
            )
            call = forward(iter([forged]), timeout=10)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert dict(call.trailing_metadata())["stagemesh-code"] == code


def test_worker_of_another_protocol_version_is_refused_by_both_numbers(cluster: Cluster) -> None:
    hello = mesh_pb2.Hello(
        protocol_version=PROTOCOL_VERSION + 1, worker_id="w", node="n", address="127.0.0.1:1"
    )
    with dial_blocking(cluster.mesh_address) as channel:
        join: Any = channel.stream_stream(
            "/stagemesh.v1.Mesh/Join",
            mesh_pb2.WorkerMessage.SerializeToString,
            mesh_pb2.CoordinatorMessage.FromString,
        )
        (answer,) = join(iter([mesh_pb2.WorkerMessage(hello=hello)]), timeout=10)
    assert str(PROTOCOL_VERSION) in answer.refusal.reason
    assert str(PROTOCOL_VERSION + 1) in answer.refusal.reason


def test_client_that_never_reads_costs_others_nothing(cluster: Cluster) -> None:
    # exo#1726: full queues dropped messages; here they hold the reader back alone.
    with Client(cluster.target) as client:
        updates = client.infer(request_of(max_tokens=3000), timeout_seconds=60)
        next(updates)
        with asking(cluster, *REQUESTS):
            pass
        updates.close()
    cluster.assert_idle()


def test_client_whose_connection_is_half_open_is_let_go(cluster: Cluster) -> None:
    # TensorRT-LLM#11992: keepalive must find a dead peer, and leave a live one alone.
    with proxy_to(cluster.target) as proxy:
        asked = Asked(request_of(max_tokens=4000), proxy.address)
        asked.start()
        asked.wait_for_tokens(3)
        proxy.set(Faults(is_stalled=True))
        with asking(cluster, *REQUESTS):
            pass
        cluster.wait_until(lambda state: state.num_running == 0, "rid of the lost client")
        cluster.assert_idle()
        proxy.heal()
        with suppress(Exception):
            asked.result()


def test_idle_mesh_keeps_its_streams_over_several_keepalives(cluster: Cluster) -> None:
    # TensorRT-LLM#11992: pings that the other end did not permit drew GOAWAY.
    epoch = cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch
    time.sleep(IDLE_SECONDS)  # is what is tried
    with asking(cluster, *REQUESTS[:2]):
        pass
    assert cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch == epoch
