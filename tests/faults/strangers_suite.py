"""Streams, messages, versions and clients that should not be, beside requests in flight.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import json
import socket
import time
from typing import Any

import grpc
import pytest

from protos import inference_pb2, mesh_pb2, stage_pb2
from runtime.addresses import split_address
from runtime.rpc.channels import dial_blocking
from runtime.version import PROTOCOL_VERSION
from stagemesh import Client, StagemeshRpcError
from stagemesh.faults.fault_proxy import Faults
from tests.faults.asking import REQUESTS, Asked, asking, request_of
from tests.faults.cluster import Cluster, Place
from tests.faults.garbage import throw_garbage
from tests.faults.proxies import proxy_to

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Three pings, and some.
IDLE_SECONDS = 35.0
# No protobuf message: a tag whose number has no end.
NO_MESSAGE = b"\xff" * 64
SERVICES = {
    name: service
    for module in (inference_pb2, mesh_pb2, stage_pb2)
    for name, service in module.DESCRIPTOR.services_by_name.items()
}


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
@pytest.mark.parametrize("stage", [0, 1])
def test_forged_frame_is_refused_and_costs_no_token(
    stage: int, counter_offset: int, frame: stage_pb2.Frame, code: str, cluster: Cluster
) -> None:
    served = cluster.epoch()
    worker = cluster.worker_at(Place(stage))
    with dial_blocking(worker.address) as channel, asking(cluster, *REQUESTS[:2]):
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
    assert cluster.epoch() == served


@pytest.mark.parametrize("service", SERVICES)
def test_message_that_is_none_is_refused_by_every_call_and_costs_no_token(
    service: str, cluster: Cluster
) -> None:
    served = cluster.epoch()
    addresses = {
        "Inference": [cluster.target],
        "Operations": [cluster.target, cluster.mesh_address],
        "Mesh": [cluster.mesh_address],
        "Stage": [worker.address for worker in cluster.workers],
    }
    with asking(cluster, *REQUESTS[:2]):
        for address in addresses[service]:
            for method in SERVICES[service].methods:
                code = refusal(address, f"{SERVICES[service].full_name}/{method.name}")
                assert code is not grpc.StatusCode.DEADLINE_EXCEEDED, (address, method.name)
    assert cluster.epoch() == served


def refusal(address: str, method: str) -> grpc.StatusCode:
    """How a call ends whose only message is none."""
    with dial_blocking(address) as channel:
        # Whatever the method is: on the wire a stream of one is the same.
        call: Any = channel.stream_stream(f"/{method}")
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([NO_MESSAGE]), timeout=10))
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code()


def test_garbage_on_every_port_without_tls_changes_nothing(cluster: Cluster) -> None:
    throw_garbage(cluster)


@pytest.mark.parametrize("offset", [-1, 1], ids=["earlier", "later"])
def test_worker_of_another_protocol_version_is_refused_by_both_numbers(
    offset: int, cluster: Cluster
) -> None:
    hello = mesh_pb2.Hello(
        protocol_version=PROTOCOL_VERSION + offset,
        worker_id="w",
        node="n",
        address=cluster.worker_at(Place(0)).address,
    )
    workers = cluster.ready_state().workers
    with asking(cluster, *REQUESTS[:2]), dial_blocking(cluster.mesh_address) as channel:
        join: Any = channel.stream_stream(
            "/stagemesh.v1.Mesh/Join",
            mesh_pb2.WorkerMessage.SerializeToString,
            mesh_pb2.CoordinatorMessage.FromString,
        )
        (answer,) = join(iter([mesh_pb2.WorkerMessage(hello=hello)]), timeout=10)
        assert str(PROTOCOL_VERSION) in answer.refusal.reason
        assert str(PROTOCOL_VERSION + offset) in answer.refusal.reason
    assert cluster.ready_state().workers == workers


class TestClients:
    """Clients that do not read, or have disconnected."""

    def test_client_that_never_reads_costs_others_nothing(self, cluster: Cluster) -> None:
        # exo#1726: full queues dropped messages; here they hold the reader back alone.
        with Client(cluster.target) as client:
            updates = client.infer(request_of(max_tokens=3000), timeout_seconds=60)
            next(updates)
            with asking(cluster, *REQUESTS):
                pass
            updates.close()
        cluster.assert_idle()

    def test_http_client_that_never_reads_costs_others_nothing(self, cluster: Cluster) -> None:
        body = {"model": "tiny-chat", "prompt": [5, 6, 7], "max_tokens": 3000, "stream": True}
        message = json.dumps(body | {"ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(message)}\r\n"
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(split_address(cluster.http))
            connection.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + message)
            cluster.wait_until(lambda state: state.num_running > 0, "at it")
            with asking(cluster, *REQUESTS):
                pass
        cluster.assert_idle()

    def test_client_whose_connection_is_half_open_is_let_go(self, cluster: Cluster) -> None:
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
            # Let go, and not only at the end of its answer.
            with pytest.raises(StagemeshRpcError):
                asked.result()


def test_idle_mesh_keeps_its_streams_over_several_keepalives(cluster: Cluster) -> None:
    # TensorRT-LLM#11992: pings that the other end did not permit drew GOAWAY.
    epoch = cluster.epoch()
    time.sleep(IDLE_SECONDS)  # is what is tried
    with asking(cluster, *REQUESTS[:2]):
        pass
    assert cluster.epoch() == epoch
