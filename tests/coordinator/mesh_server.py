"""A mesh listener in a test's hands, and fake workers that may join there."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from coordinator.api.grpc.mesh_service import MeshService
from coordinator.membership.membership import Membership
from protos import mesh_pb2_grpc
from runtime.rpc import channels
from runtime.rpc.tls import DialPolicy
from tests.coordinator.fake_worker import FakeWorker, fake_worker

_ON_LOOPBACK = DialPolicy()


@asynccontextmanager
async def mesh_server(
    membership: Membership,
    heartbeat_seconds: float = 0.02,
    timeout_seconds: float = 10.0,
    dial_policy: DialPolicy = _ON_LOOPBACK,
) -> AsyncIterator[tuple[str, MeshService]]:
    """A mesh listener, which is closed at the end."""
    server = channels.make_server()
    service = MeshService(membership, "c1", heartbeat_seconds, timeout_seconds, dial_policy)
    mesh_pb2_grpc.add_MeshServicer_to_server(service, server)
    address = await channels.bind(server, "127.0.0.1:0")
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
