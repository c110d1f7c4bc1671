"""Join streams: which workers are admitted, and how the end of a stream is noticed."""

import grpc
import grpc.aio
import pytest

from coordinator.membership.membership import Membership
from protos import mesh_pb2, stage_pb2
from runtime.host.devices import DeviceUsage
from runtime.protocol.step import RankActivity
from runtime.version import PROTOCOL_VERSION
from tests.coordinator.mesh_server import mesh_server, workers


async def test_join_valid_hello_is_welcomed_and_receives_heartbeats() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        message = await worker.join_mesh(address)
        assert message.welcome.coordinator_id == "c1"
        assert message.welcome.heartbeat_seconds == pytest.approx(0.02)
        (record,) = membership.free
        assert record.identity.worker_id == "a"
        assert worker.join is not None
        second = await worker.join.read()
        assert isinstance(second, mesh_pb2.CoordinatorMessage)
        assert second.HasField("heartbeat")


async def test_join_hello_reports_the_dtypes_of_the_device() -> None:
    membership = Membership(4)
    dtypes = [stage_pb2.DTYPE_FLOAT32, stage_pb2.DTYPE_BFLOAT16]
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address, device=mesh_pb2.Device(kind="cpu", dtypes=dtypes))
        assert membership.workers[0].identity.dtypes == ("float32", "bfloat16")


async def test_join_other_protocol_version_is_refused_with_both_versions() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        message = await worker.join_mesh(address, protocol_version=PROTOCOL_VERSION + 1)
        assert str(PROTOCOL_VERSION) in message.refusal.reason
        assert str(PROTOCOL_VERSION + 1) in message.refusal.reason
        assert membership.workers == ()


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


async def test_join_again_before_the_end_was_noticed_replaces_the_earlier_stream() -> None:
    """Case 24 (parallax#166): a quick rejoin is not counted twice."""
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        (former,) = membership.workers
        first.stage.worker_id = "b"  # another worker answers there now
        await second.join_mesh(address, address=first.address)
        assert former.departure_reason == "it joined again"
        assert [worker.identity.worker_id for worker in membership.workers] == ["b"]


async def test_join_mesh_full_is_refused() -> None:
    async with mesh_server(Membership(1)) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        assert "its 1 workers" in (await second.join_mesh(address)).refusal.reason


async def test_join_again_to_a_full_mesh_replaces_the_earlier_stream() -> None:
    membership = Membership(1)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        await first.join_mesh(address)
        first.stage.worker_id = "b"
        message = await second.join_mesh(address, address=first.address)
        assert message.HasField("welcome")
        assert [worker.identity.worker_id for worker in membership.workers] == ["b"]


async def test_join_evicted_worker_receives_the_reason() -> None:
    membership = Membership(1)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        membership.leave(membership.workers[0], "its files differ")
        assert worker.join is not None
        assert await worker.join.code() is grpc.StatusCode.UNAVAILABLE
        assert await worker.join.details() == "out of the mesh: its files differ"


async def test_join_stream_breaks_removes_the_worker_with_a_reason() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        (record,) = membership.workers
        await worker.kill()
        await record.departed.wait()
        assert record.departure_reason == "its Join stream ended"
        assert membership.workers == ()


async def test_join_without_heartbeats_removes_the_worker_after_the_timeout() -> None:
    membership = Membership(4)
    async with mesh_server(membership, timeout_seconds=0.1) as (address, _), workers("a") as [w]:
        await w.join_mesh(address)
        (record,) = membership.workers
        await record.departed.wait()
        assert record.departure_reason == "no heartbeat within 0.1 s"


async def test_join_with_heartbeats_keeps_the_worker() -> None:
    membership = Membership(4)
    async with mesh_server(membership, 0.1, 1.0) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        assert worker.join is not None
        for _ in range(20):  # one heartbeat interval each, 2 s in total
            await worker.join.write(mesh_pb2.WorkerMessage(heartbeat=mesh_pb2.Heartbeat()))
            await worker.join.read()
        assert len(membership.workers) == 1


async def test_join_coordinator_closes_ends_every_stream() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, service), workers("a") as [worker]:
        await worker.join_mesh(address)
        (record,) = membership.workers
        service.close()
        await record.departed.wait()
        assert record.departure_reason == "the coordinator stops"


async def test_heartbeat_reports_the_load_of_the_device() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        await worker.join_mesh(address)
        assert worker.join is not None
        assert membership.workers[0].usage is None
        usage = mesh_pb2.DeviceUsage(utilization=0.5, memory_used_bytes=7)
        await worker.join.write(mesh_pb2.WorkerMessage(heartbeat=mesh_pb2.Heartbeat(usage=usage)))
        while (reported := membership.workers[0].usage) is None:
            await worker.join.read()
        assert reported == DeviceUsage(utilization=0.5, memory_used_bytes=7)


async def test_heartbeat_reports_the_activity_of_the_rank_and_its_epoch() -> None:
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
        record = membership.workers[0]
        while record.activity is None:
            await worker.join.read()
        assert record.activity == RankActivity(7, 2.0, 0.5, 90)
        assert record.active_epoch == ("c1", 3)
