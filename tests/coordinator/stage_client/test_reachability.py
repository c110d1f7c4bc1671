"""Which workers are called at their advertised addresses, and the replies to unreachable ones."""

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from coordinator.membership.membership import Membership
from coordinator.stage_client import reachability
from runtime.rpc.tls import DialPolicy
from runtime.version import PROTOCOL_VERSION
from stagemesh.launcher.ports import reserve
from tests.coordinator.mesh_server import mesh_server, workers


async def test_join_from_an_unreachable_address_is_refused_at_once() -> None:
    """Case 27 (vllm#27823): a closed port or a wrong interface is reported without a timeout."""
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        free = reserve("127.0.0.1:0")
        with pytest.raises(grpc.aio.AioRpcError, match="Connection refused") as caught:
            await worker.join_mesh(address, address=free)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert f"cannot reach this worker at {free}: " in (caught.value.details() or "")
        assert "give --advertise, or else --listen" in (caught.value.details() or "")
        assert membership.workers == ()


async def test_join_from_a_port_that_never_answers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 27 (vllm#27823): a port that accepts connections may have no worker."""
    monkeypatch.setattr(reachability, "STATUS_SECONDS", 0.2)
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a") as [worker]:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            stalled = f"127.0.0.1:{silent.getsockname()[1]}"
            with pytest.raises(grpc.aio.AioRpcError, match="no answer within"):
                await worker.join_mesh(address, address=stalled)
        assert membership.workers == ()


async def test_join_from_the_address_of_another_worker_names_it() -> None:
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        with pytest.raises(grpc.aio.AioRpcError, match="another worker, a, answers there"):
            await second.join_mesh(address, address=first.address)
        assert membership.workers == ()


@pytest.mark.parametrize(
    ("changes", "dial_policy", "reason"),
    [
        (
            {"protocol_version": PROTOCOL_VERSION + 1},
            DialPolicy(is_insecure=True),
            "protocol version",
        ),
        ({"node": "n" * 300}, DialPolicy(is_insecure=True), "longer than 256"),
        ({"address": "192.0.2.1:1"}, DialPolicy(), "stays on loopback"),
        ({"address": "some.host:1"}, DialPolicy(), "stays on loopback"),
        ({"address": "0.0.0.0:1"}, DialPolicy(), "--advertise"),
        ({"address": "[::]:1"}, DialPolicy(is_insecure=True), "--advertise"),
    ],
    ids=["version", "identity", "address", "name", "any", "any IPv6"],
)
async def test_join_of_a_worker_that_may_not_join_dials_no_address(
    changes: dict[str, Any], dial_policy: DialPolicy, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 25 (CVE-2025-47277): an untrusted hello does not make the coordinator connect."""
    dialled: list[str] = []
    monkeypatch.setattr(reachability, "dial", lambda address, tls: dialled.append(address))
    membership = Membership(4)
    async with (
        mesh_server(membership, dial_policy=dial_policy) as (address, _),
        workers("a") as [worker],
    ):
        message = await worker.join_mesh(address, **changes)
        assert reason in message.refusal.reason
    assert dialled == []
    assert membership.workers == ()


async def test_join_with_a_huge_address_is_cut_in_the_log() -> None:
    """Case 25 (CVE-2025-47277): a hello may have megabytes, its log event may not."""
    async with mesh_server(Membership(4)) as (address, _), workers("a") as [worker]:
        with capture_logs() as logs:
            message = await worker.join_mesh(address, address="a" * 100_000 + ":5")
    assert "longer than 256" in message.refusal.reason
    [refused] = [log for log in logs if log["event"] == "worker_refused"]
    assert len(str(refused)) < 1_000


async def test_join_above_the_limit_of_concurrent_checks_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "MAX_CONCURRENT", 1)
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        first.stage.behaviour.answering.clear()
        joining = asyncio.create_task(first.join_mesh(address))
        await first.stage.asked.wait()
        waiting = asyncio.create_task(second.join_mesh(address))
        first.stage.behaviour.answering.set()
        messages = await asyncio.gather(joining, waiting)
        assert all(message.HasField("welcome") for message in messages)
        assert [worker.identity.worker_id for worker in membership.workers] == ["a", "b"]


async def test_join_that_waits_too_long_for_its_check_is_not_dialled_and_may_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repeated hellos do not open more than the allowed number of channels."""
    monkeypatch.setattr(reachability, "MAX_CONCURRENT", 1)
    monkeypatch.setattr(reachability, "MAX_QUEUE_SECONDS", 0.05)
    membership = Membership(4)
    async with mesh_server(membership) as (address, _), workers("a", "b") as [first, second]:
        first.stage.behaviour.answering.clear()
        joining = asyncio.create_task(first.join_mesh(address))
        await first.stage.asked.wait()
        with pytest.raises(grpc.aio.AioRpcError, match="too many workers join") as caught:
            await second.join_mesh(address)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not second.stage.asked.is_set()
        first.stage.behaviour.answering.set()
        assert (await joining).HasField("welcome")
        assert (await second.join_mesh(address)).HasField("welcome")
