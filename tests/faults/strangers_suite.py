"""Streams, versions and clients that should not be, beside requests that they cost nothing.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import time
from contextlib import suppress
from typing import Any

import grpc
import pytest

from protos import mesh_pb2, stage_pb2
from runtime.rpc import dial_blocking
from runtime.version import PROTOCOL_VERSION
from stagemesh import Client, StagemeshRpcError
from stagemesh.fault_proxy import Faults
from tests.faults.asking import REQUESTS, Asked, asking, request_of
from tests.faults.cluster import Cluster
from tests.faults.proxies import proxy_to

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Three pings, and some.
IDLE_SECONDS = 35.0


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
        worker = cluster.worker_of(1)
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
        protocol_version=PROTOCOL_VERSION + 1,
        worker_id="w",
        node="n",
        address=cluster.worker_of(0).inward.address,
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
        with suppress(StagemeshRpcError):
            asked.result()


def test_idle_mesh_keeps_its_streams_over_several_keepalives(cluster: Cluster) -> None:
    # TensorRT-LLM#11992: pings that the other end did not permit drew GOAWAY.
    epoch = cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch
    time.sleep(IDLE_SECONDS)  # is what is tried
    with asking(cluster, *REQUESTS[:2]):
        pass
    assert cluster.wait_until(lambda state: state.ready, "ready").replicas[0].epoch == epoch
