"""Owns the Join stream: hello in, welcome or refusal out, then heartbeats both ways until one ends.

The stream's life is the worker's membership; what membership means is in `membership.py`.
"""

import asyncio

import grpc

from coordinator.api.grpc.draining import MAX_GRACE_SECONDS
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

# A process that was killed and one that left look the same from here.
_STREAM_ENDED = "its Join stream ended"
# A trailer must hold it.
_MAX_REASON = 1_000

_log = get_logger()


class _JoinEndedError(Exception):
    """Raised when a Join stream is over, with the reason as its text."""


class MeshService(mesh_pb2_grpc.MeshServicer):
    """Lets workers in and keeps them in while both sides hear each other."""

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
        """Ends every Join stream, so that the server can stop without waiting for workers."""
        self._closing.set()

    # Reads and writes by itself: read() can be given a deadline, the iterator cannot.
    async def Join(  # type: ignore[override]
        self, _: object, context: _Context
    ) -> None:
        """One worker's membership, from hello to the end of the stream."""
        hello = await self._read_hello(context)
        if hello is None:
            return
        identity = _identity(hello)
        try:
            self._membership.check(identity)
            check_worker_address(identity.address, self._dial_policy)
            await self._check_reached(identity, context)
            worker = self._membership.join(identity, assignment_from_proto(hello.held))
        except RefusedWorkerError as error:
            name = identity.address[:MAX_FIELD_LENGTH]
            _log.warning("worker_refused", worker=name, reason=str(error))
            await context.write(
                mesh_pb2.CoordinatorMessage(refusal=mesh_pb2.Refusal(reason=str(error)))
            )
            return
        if reason := await self._hold(worker, context):
            detail = f"out of the mesh: {reason}"[:_MAX_REASON]
            await context.abort(grpc.StatusCode.UNAVAILABLE, detail)

    async def _check_reached(self, identity: WorkerIdentity, context: _Context) -> None:
        """Ends the call of a worker that does not answer where it says; it may ask again."""
        try:
            problem = await self._reachability.find_problem(identity)
        except TimeoutError:
            detail = "too many workers join at once; ask again"
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

    async def _hold(self, worker: WorkerRecord, context: _Context) -> str:
        """Keeps `worker` in until its stream ends, it falls silent or the coordinator closes.

        Returns why somebody else took it out, if that was the end; one that was asked to leave is
        told that it may go.
        """
        identity = worker.identity
        _log.info("worker_joined", worker=worker.name, worker_id=identity.worker_id)
        if identity.build != BUILD:
            _log.warning("builds_differ", worker=worker.name, theirs=identity.build, ours=BUILD)
        reason = _STREAM_ENDED
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(worker, context))
                tasks.create_task(self._speak(context))
                tasks.create_task(self._end_on_close())
                tasks.create_task(_end_on_departure(worker))
        except* _JoinEndedError as ended:
            reason = str(ended.exceptions[0])
        finally:
            was_put_out = worker.departed.is_set()
            self._membership.leave(worker, reason)
            _log.info("worker_left", worker=worker.name, reason=reason)
        if worker.is_released:
            await context.write(mesh_pb2.CoordinatorMessage(released=mesh_pb2.Released()))
            return ""
        return reason if was_put_out else ""

    async def _listen(self, worker: WorkerRecord, context: _Context) -> None:
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
                # In this order, what is not a number becomes no time at all.
                seconds = min(MAX_GRACE_SECONDS, max(0.0, message.leaving.grace_seconds))
                _log.info("worker_leaves", worker=worker.name, grace_seconds=seconds)
                now = asyncio.get_running_loop().time()
                self._membership.drain(worker, now + seconds)

    async def _speak(self, context: _Context) -> None:
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
