"""The Mesh service: the Join stream of a worker, whose life is the worker's membership.

The worker sends `Hello`, the coordinator replies `Welcome` or `Refusal`, then both send heartbeats
until one of them ends the stream. Membership itself is in `coordinator/membership/membership.py`.
"""

import asyncio

import grpc

from coordinator.api.grpc.operations_service import MAX_GRACE_SECONDS
from coordinator.membership.membership import MAX_FIELD_LENGTH, Membership
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from coordinator.security.listen_policy import check_worker_address
from coordinator.stage_client.reachability import ReachabilityCheck
from coordinator.stage_client.stage_codec import assignment_from_proto
from protos import mesh_pb2, mesh_pb2_grpc, stage_pb2
from runtime.errors import RefusedWorkerError
from runtime.host.logs import get_logger
from runtime.protocol.device_codec import usage_from_proto
from runtime.protocol.result_codec import activity_from_proto
from runtime.rpc.tls import DialPolicy
from runtime.version import BUILD

_Context = grpc.aio.ServicerContext[mesh_pb2.WorkerMessage, mesh_pb2.CoordinatorMessage]

# The same for a process that was killed and one that left.
_STREAM_ENDED = "its Join stream ended"
# Has to fit a trailer.
_MAX_REASON = 1_000

_log = get_logger()


class _JoinEndedError(Exception):
    """Raised when a Join stream ends, with the reason as its text."""


class MeshService(mesh_pb2_grpc.MeshServicer):
    """Admits workers and keeps them members while heartbeats arrive in both directions."""

    def __init__(
        self,
        membership: Membership,
        coordinator_id: str,
        heartbeat_seconds: float,
        timeout_seconds: float,
        dial_policy: DialPolicy,
    ) -> None:
        self._membership = membership
        self._coordinator_id = coordinator_id
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._dial_policy = dial_policy
        self._reachability = ReachabilityCheck(dial_policy.tls)
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends all Join streams, so that the server can stop without waiting for workers."""
        self._closing.set()

    # Uses context.read() instead of the request iterator, which cannot have a deadline.
    async def Join(  # type: ignore[override]
        self, _: object, context: _Context
    ) -> None:
        """One worker's membership, from its hello to the end of the stream."""
        hello = await self._read_hello(context)
        if hello is None:
            return
        identity = _identity(hello)
        try:
            self._membership.check(identity)
            check_worker_address(identity.address, self._dial_policy)
            await self._check_reachable(identity, context)
            worker = self._membership.join(identity, assignment_from_proto(hello.held))
        except RefusedWorkerError as error:
            name = identity.address[:MAX_FIELD_LENGTH]
            _log.warning("worker_refused", worker=name, reason=str(error))
            await context.write(
                mesh_pb2.CoordinatorMessage(refusal=mesh_pb2.Refusal(reason=str(error)))
            )
            return
        if reason := await self._keep_joined(worker, context):
            detail = f"out of the mesh: {reason}"[:_MAX_REASON]
            await context.abort(grpc.StatusCode.UNAVAILABLE, detail)

    async def _check_reachable(self, identity: WorkerIdentity, context: _Context) -> None:
        """Aborts the call of a worker that does not answer at its address; the worker may retry."""
        try:
            problem = await self._reachability.find_problem(identity)
        except TimeoutError:
            detail = "too many workers join at once; retry"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, detail)
        if problem:
            _log.warning("worker_unreachable", worker=identity.address, problem=problem)
            detail = f"the coordinator cannot reach this worker at {identity.address}: "
            detail += f"{problem}; give --advertise, or else --listen, one that it can reach"
            await context.abort(grpc.StatusCode.UNAVAILABLE, detail[:_MAX_REASON])

    async def _read_hello(self, context: _Context) -> mesh_pb2.Hello | None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                message = await context.read()
        except TimeoutError:
            return None
        if not isinstance(message, mesh_pb2.WorkerMessage):
            return None
        return message.hello if message.HasField("hello") else None

    async def _keep_joined(self, worker: WorkerRecord, context: _Context) -> str:
        """Returns when the stream or the heartbeats end, or the worker is removed, or on `close`.

        The result is the reason of a removal, else empty. A drained worker is sent `Released`.
        """
        identity = worker.identity
        _log.info("worker_joined", worker=worker.name, worker_id=identity.worker_id)
        if identity.build != BUILD:
            _log.warning("builds_differ", worker=worker.name, theirs=identity.build, ours=BUILD)
        reason = _STREAM_ENDED
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(worker, context))
                tasks.create_task(self._send_heartbeats(context))
                tasks.create_task(self._end_on_close())
                tasks.create_task(_end_on_departure(worker))
        except* _JoinEndedError as ended:
            reason = str(ended.exceptions[0])
        finally:
            was_removed = worker.departed.is_set()
            self._membership.leave(worker, reason)
            _log.info("worker_left", worker=worker.name, reason=reason)
        if worker.is_released:
            await context.write(mesh_pb2.CoordinatorMessage(released=mesh_pb2.Released()))
            return ""
        return reason if was_removed else ""

    async def _receive(self, worker: WorkerRecord, context: _Context) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    message = await context.read()
            except TimeoutError:
                raise _JoinEndedError(f"no heartbeat within {self._timeout_seconds:g} s") from None
            if not isinstance(message, mesh_pb2.WorkerMessage):
                raise _JoinEndedError(_STREAM_ENDED)
            if message.heartbeat.HasField("usage"):
                worker.usage = usage_from_proto(message.heartbeat.usage)
            if message.heartbeat.HasField("activity"):
                epoch = message.heartbeat.activity.epoch
                worker.activity = activity_from_proto(message.heartbeat.activity)
                worker.active_epoch = epoch.coordinator_id, epoch.counter
            if message.HasField("leaving"):
                # In this order, NaN becomes 0.
                seconds = min(MAX_GRACE_SECONDS, max(0.0, message.leaving.grace_seconds))
                _log.info("worker_leaves", worker=worker.name, grace_seconds=seconds)
                now = asyncio.get_running_loop().time()
                self._membership.drain(worker, now + seconds)

    async def _send_heartbeats(self, context: _Context) -> None:
        welcome = mesh_pb2.Welcome(
            coordinator_id=self._coordinator_id, heartbeat_seconds=self._heartbeat_seconds
        )
        await context.write(mesh_pb2.CoordinatorMessage(welcome=welcome))
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            await context.write(mesh_pb2.CoordinatorMessage(heartbeat=mesh_pb2.Heartbeat()))

    async def _end_on_close(self) -> None:
        await self._closing.wait()
        raise _JoinEndedError("the coordinator stops")


async def _end_on_departure(worker: WorkerRecord) -> None:
    await worker.departed.wait()
    raise _JoinEndedError(worker.departure_reason)


def _identity(hello: mesh_pb2.Hello) -> WorkerIdentity:
    return WorkerIdentity(
        protocol_version=hello.protocol_version,
        build=hello.build,
        worker_id=hello.worker_id,
        node=hello.node,
        address=hello.address,
        device_kind=hello.device.kind,
        device_name=hello.device.name,
        memory_bytes=hello.device.memory_bytes,
        pid=hello.pid,
        metrics_address=hello.metrics_address,
        dtypes=tuple(
            stage_pb2.DType.Name(dtype).removeprefix("DTYPE_").lower()
            for dtype in hello.device.dtypes
            if dtype in stage_pb2.DType.values()
        ),
    )
