"""Join streams: who is let in, and how the end of one is noticed."""

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from coordinator import preflight
from coordinator.exposure import Reach
from coordinator.membership import Membership
from coordinator.mesh_service import MeshService
from protos import mesh_pb2, mesh_pb2_grpc, stage_pb2
from runtime import rpc
from runtime.devices import DeviceUsage
from runtime.step import RankActivity
from runtime.version import PROTOCOL_VERSION
from stagemesh.ports import reserve
from tests.coordinator.fake_worker import FakeWorker, fake_worker

ON_LOOPBACK = Reach()


@asynccontextmanager
async def mesh_server(
    membership: Membership,
    heartbeat_seconds: float = 0.02,
    timeout_seconds: float = 10.0,
    reach: Reach = ON_LOOPBACK,
) -> AsyncIterator[tuple[str, MeshService]]:
    """A mesh listener, which is closed at the end."""
    server = rpc.make_server()
    service = MeshService(membership, "c1", heartbeat_seconds, timeout_seconds, reach)
    mesh_pb2_grpc.add_MeshServicer_to_server(service, server)
    address = await rpc.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield address, service
    finally:
        service.close()
        await server.stop(1.0)


@asynccontextmanager
async def workers(*worker_ids: str) -> AsyncIterator[list[FakeWorker]]:
    """Fake workers that have not joined."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(fake_worker(name)) for name in worker_ids]


async def test_join_right_hello_is_welcomed_and_hears_heartbeats() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        message = await worker.join_mesh(address)
        assert message.welcome.coordinator_id == "c1"
        assert message.welcome.heartbeat_seconds == pytest.approx(0.02)
        (member,) = await membership.take(0, lambda free: tuple(free) or None)
        assert member.identity.worker_id == "a"
        assert worker.join is not None
        second = await worker.join.read()
        assert isinstance(second, mesh_pb2.CoordinatorMessage)
        assert second.HasField("heartbeat")


async def test_join_hello_tells_what_the_device_computes_fast() -> None:
    membership = Membership(4)
    dtypes = [stage_pb2.DTYPE_FLOAT32, stage_pb2.DTYPE_BFLOAT16]
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address, device=mesh_pb2.Device(kind="cpu", dtypes=dtypes))
        assert membership.members[0].identity.dtypes == ("float32", "bfloat16")


async def test_join_other_protocol_version_is_refused_naming_both() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        message = await worker.join_mesh(address, protocol_version=PROTOCOL_VERSION + 1)
        assert str(PROTOCOL_VERSION) in message.refusal.reason
        assert str(PROTOCOL_VERSION + 1) in message.refusal.reason
        assert membership.members == ()


async def test_join_worker_id_of_another_address_is_refused() -> None:
    async with mesh_server(Membership(4)) as (address, _), workers("a", "a") as [first, second]:
        await first.join_mesh(address)
        message = await second.join_mesh(address)
        assert "in the mesh already" in message.refusal.reason
        assert first.address in message.refusal.reason


async def test_join_address_of_another_node_is_refused() -> None:
    async with mesh_server(Membership(4)) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        message = await second.join_mesh(address, node="elsewhere", address=first.address)
        assert "node here" in message.refusal.reason


async def test_join_again_before_the_end_was_noticed_replaces_the_former() -> None:
    """Case 24 (parallax#166): a quick rejoin is not counted twice."""
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        (former,) = membership.members
        first.stage.worker_id = "b"  # who answers there now
        await second.join_mesh(address, address=first.address)
        assert former.gone_reason == "it joined anew"
        assert [member.identity.worker_id for member in membership.members] == ["b"]


async def test_join_from_where_it_cannot_be_reached_is_told_so_at_once() -> None:
    """Case 27 (vllm#27823): a closed port or a wrong interface is named, not waited for."""
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        free = reserve("127.0.0.1:0")
        with pytest.raises(grpc.aio.AioRpcError, match="Connection refused") as caught:
            await worker.join_mesh(address, address=free)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"cannot reach this worker at {free}: " in (caught.value.details() or "")
        assert "--listen" in (caught.value.details() or "")
        assert membership.members == ()


async def test_join_from_where_nothing_passes_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 27 (vllm#27823): a port that takes connections is not yet a worker that answers."""
    monkeypatch.setattr(preflight, "STATUS_SECONDS", 0.2)
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            stalled = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(grpc.aio.AioRpcError, match="no answer within"):
                await worker.join_mesh(address, address=stalled)
        assert membership.members == ()


async def test_join_where_another_worker_answers_is_told_who() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        with pytest.raises(grpc.aio.AioRpcError, match="another worker, a, answers there"):
            await second.join_mesh(address, address=first.address)
        assert membership.members == ()


@pytest.mark.parametrize(
    ("changes", "reach", "says"),
    [
        ({"protocol_version": PROTOCOL_VERSION + 1}, Reach(is_insecure=True), "protocol version"),
        ({"node": "n" * 300}, Reach(is_insecure=True), "longer than 256"),
        ({"address": "192.0.2.1:1"}, Reach(), "stays on loopback"),
        ({"address": "some.host:1"}, Reach(), "stays on loopback"),
    ],
    ids=["version", "identity", "address", "name"],
)
async def test_join_of_a_worker_that_may_not_join_dials_nobody(
    changes: dict[str, Any], reach: Reach, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 25 (CVE-2025-47277): what a stranger says has this machine connect to nothing."""
    dialled: list[str] = []
    monkeypatch.setattr(preflight, "dial", lambda address, tls: dialled.append(address))
    membership = Membership(4)
    async with (
        mesh_server(membership, reach=reach) as (address, _),
        workers("a") as [worker],
    ):
        message = await worker.join_mesh(address, **changes)
        assert says in message.refusal.reason
    assert dialled == []
    assert membership.members == ()


async def test_join_mesh_full_is_refused() -> None:
    async with mesh_server(Membership(1)) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        assert "its 1 workers" in (await second.join_mesh(address)).refusal.reason


async def test_join_again_to_a_full_mesh_replaces_the_former() -> None:
    membership = Membership(1)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        first.stage.worker_id = "b"
        message = await second.join_mesh(address, address=first.address)
        assert message.HasField("welcome")
        assert [member.identity.worker_id for member in membership.members] == ["b"]


async def test_join_worker_is_put_out_is_told_why() -> None:
    membership = Membership(1)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        membership.leave(membership.members[0], "its files differ")
        assert worker.join is not None
        assert await worker.join.code() is grpc.StatusCode.UNAVAILABLE
        assert await worker.join.details() == "out of the mesh: its files differ"


async def test_join_stream_breaks_worker_is_gone_with_a_reason() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        (member,) = membership.members
        await worker.kill()
        await member.gone.wait()
        assert member.gone_reason == "its Join stream ended"
        assert membership.members == ()


async def test_join_worker_falls_silent_is_gone_after_the_timeout() -> None:
    membership = Membership(4)
    async with mesh_server(membership, timeout_seconds=0.1) as (address, _), workers("a") as [w]:
        await w.join_mesh(address)
        (member,) = membership.members
        await member.gone.wait()
        assert member.gone_reason == "no heartbeat within 0.1 s"


async def test_join_heartbeats_keep_a_worker_in() -> None:
    membership = Membership(4)
    async with mesh_server(membership, 0.02, 0.2) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        assert worker.join is not None
        for _ in range(20):  # each answer takes a heartbeat's time: 0.4 s in all
            await worker.join.write(mesh_pb2.WorkerMessage(heartbeat=mesh_pb2.Heartbeat()))
            await worker.join.read()
        assert len(membership.members) == 1


async def test_join_coordinator_closes_ends_every_stream() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, service), workers("a") as [worker]:
        await worker.join_mesh(address)
        (member,) = membership.members
        service.close()
        await member.gone.wait()
        assert member.gone_reason == "the coordinator stops"


async def test_heartbeat_tells_the_load_of_the_device() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        assert worker.join is not None
        assert membership.members[0].usage is None
        usage = mesh_pb2.DeviceUsage(utilization=0.5, memory_used_bytes=7)
        await worker.join.write(mesh_pb2.WorkerMessage(heartbeat=mesh_pb2.Heartbeat(usage=usage)))
        while (told := membership.members[0].usage) is None:
            await worker.join.read()
        assert told == DeviceUsage(utilization=0.5, memory_used_bytes=7)


async def test_heartbeat_tells_what_the_rank_did_and_in_which_epoch() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        assert worker.join is not None
        activity = mesh_pb2.RankActivity(
            epoch=stage_pb2.EpochId(coordinator_id="c1", counter=3),
            num_steps=7,
            compute_seconds=2.0,
            wait_seconds=0.5,
            num_bytes_sent=90,
        )
        heartbeat = mesh_pb2.Heartbeat(activity=activity)
        await worker.join.write(mesh_pb2.WorkerMessage(heartbeat=heartbeat))
        member = membership.members[0]
        while member.activity is None:
            await worker.join.read()
        assert member.activity == RankActivity(7, 2.0, 0.5, 90)
        assert member.active_epoch == ("c1", 3)
