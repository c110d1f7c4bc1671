"""The Operations service: the coordinator's state as one message, and draining of workers."""

import asyncio
from typing import Any, Final

from coordinator.coordinator import Coordinator
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord
from coordinator.replica.replica import Phase, Replica
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from coordinator.telemetry.scheduler_telemetry import scheduler_state
from protos import mesh_pb2, mesh_pb2_grpc, stage_pb2
from runtime.checkpoints.model_store import served_name
from runtime.errors import InvalidRequestError
from runtime.protocol.device_codec import usage_to_proto
from runtime.protocol.result_codec import activity_to_proto
from runtime.version import BUILD

MAX_GRACE_SECONDS: Final = 86_400.0


class OperationsService(mesh_pb2_grpc.OperationsServicer):
    """Answers at any time, also while no replica serves."""

    def __init__(self, coordinator: Coordinator, *, may_drain: bool) -> None:
        """`may_drain` is False at the clients' API, which is read-only."""
        self._coordinator = coordinator
        self._may_drain = may_drain

    async def GetState(
        self, request: mesh_pb2.GetStateRequest, context: Any
    ) -> mesh_pb2.GetStateResponse:
        """The state at this moment."""
        return snapshot(self._coordinator)

    async def Drain(self, request: mesh_pb2.DrainRequest, context: Any) -> mesh_pb2.DrainResponse:
        """Drains the workers of `target`, returns when they have left.

        A call that is cancelled does not stop the drain. Raises `InvalidRequestError`.
        """
        if not self._may_drain:
            problem = "cannot be drained at a client's API; call the coordinator's --mesh address"
            raise InvalidRequestError(field="target", problem=problem)
        coordinator = self._coordinator
        workers = find_workers(request.target, coordinator.membership)
        grace_seconds = request.grace_seconds or coordinator.options.grace_seconds
        if not 0 < grace_seconds <= MAX_GRACE_SECONDS:
            problem = f"is {grace_seconds:g}; must be above 0 and at most {MAX_GRACE_SECONDS:g}"
            raise InvalidRequestError(field="grace_seconds", problem=problem)
        deadline = asyncio.get_running_loop().time() + grace_seconds
        for worker in workers:
            coordinator.membership.drain(worker, deadline)
        for worker in workers:
            await worker.departed.wait()
        return mesh_pb2.DrainResponse(workers=[worker.name for worker in workers])


def find_workers(target: str, membership: Membership) -> list[WorkerRecord]:
    """The workers that `target` names by address, worker id or replica number.

    Raises `InvalidRequestError` if there are none.
    """
    if target.isdecimal():
        found = [worker for worker in membership.workers if str(worker.replica) == target]
    else:
        found = [
            worker
            for worker in membership.workers
            if target in (worker.name, worker.identity.worker_id)
        ]
    if not found:
        problem = f"{target[:100]!r} is no worker's address or id, and no replica that has workers"
        raise InvalidRequestError(field="target", problem=f"{problem}; see stagemesh status")
    return found


def snapshot(coordinator: Coordinator) -> mesh_pb2.GetStateResponse:
    """The state at this moment."""
    router = coordinator.router
    stats = router.stats()
    replicas = {replica.number: replica for replica in coordinator.replicas}
    return mesh_pb2.GetStateResponse(
        build=BUILD,
        coordinator_id=coordinator.coordinator_id,
        model=served_name(coordinator.options.model),
        ready=coordinator.is_ready,
        phase=coordinator.phase,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        replicas=[_replica_state(replica) for replica in coordinator.replicas],
        workers=[
            _worker_info(worker, None if worker.replica is None else replicas[worker.replica])
            for worker in coordinator.membership.workers
        ],
        failure=coordinator.failure,
        uptime_seconds=coordinator.uptime_seconds,
        max_model_len=router.limits.max_model_len if router.limits else 0,
        mesh_address=coordinator.mesh_address,
        recoveries=[
            recovery
            for replica in coordinator.replicas
            for recovery in _recoveries(replica.telemetry)
        ],
    )


def _recoveries(telemetry: ReplicaTelemetry) -> list[mesh_pb2.Recovery]:
    return [
        mesh_pb2.Recovery(
            replica=telemetry.replica,
            epoch=recovery.epoch,
            cause=recovery.cause,
            detail=recovery.detail,
            ended_unix_seconds=recovery.ended_unix_seconds,
            seconds=recovery.seconds or 0.0,
        )
        for recovery in telemetry.recoveries
    ]


def _replica_state(replica: Replica) -> mesh_pb2.ReplicaState:
    stats, limits = replica.engine.stats(), replica.engine.limits
    return mesh_pb2.ReplicaState(
        replica=replica.number,
        epoch=replica.epoch.to_proto(),
        num_kv_blocks=stats.num_blocks,
        num_kv_blocks_used=stats.num_blocks_used,
        block_size=limits.block_size if limits else 0,
        num_slots_used=stats.num_slots_used,
        max_sequences=limits.max_sequences if limits else 0,
        num_steps_in_flight=stats.num_steps_in_flight,
        num_steps=replica.telemetry.totals[-1].num_steps,
        stages=_stage_states(replica),
        num_prompt_tokens=stats.num_prompt_tokens,
        num_generated_tokens=stats.num_generated_tokens,
        phase=replica.describe(),
        serving=replica.is_serving,
        num_waiting=stats.num_waiting,
        scheduler=scheduler_state(replica.engine.policy_snapshot),
    )


def _stage_states(replica: Replica) -> list[mesh_pb2.StageState]:
    states: list[mesh_pb2.StageState] = []
    for index, assignment in enumerate(replica.assignments):
        if assignment.rank == 0:
            state = _stage_sums(replica, assignment.stage)
            state.first_layer, state.num_layers = assignment.first_layer, assignment.num_layers
            states.append(state)
        loading = replica.telemetry.loading[assignment.stage][assignment.rank]
        rank = mesh_pb2.RankState(
            rank=assignment.rank,
            weights_bytes=loading.weights_bytes,
            peak_rss_bytes=loading.peak_rss_bytes,
        )
        if replica.workers:
            worker = replica.workers[index]
            rank.worker_id = worker.identity.worker_id
            states[-1].worker_ids.append(rank.worker_id)
            epoch = replica.epoch
            if worker.activity and worker.active_epoch == (epoch.coordinator_id, epoch.counter):
                rank.activity.CopyFrom(activity_to_proto(worker.activity, epoch.to_proto()))
        states[-1].ranks.append(rank)
    return states


def _stage_sums(replica: Replica, stage: int) -> mesh_pb2.StageState:
    totals, loading = replica.telemetry.totals[stage], replica.telemetry.loading[stage]
    return mesh_pb2.StageState(
        stage=stage,
        compute_seconds=totals.compute_seconds,
        idle_seconds=totals.idle_seconds,
        receive_seconds=totals.receive_seconds,
        queue_seconds=totals.queue_seconds,
        send_seconds=totals.send_seconds,
        send_hidden_seconds=totals.send_hidden_seconds,
        num_frames_sent=totals.num_frames_sent,
        num_bytes_sent=totals.num_bytes_sent,
        num_steps=totals.num_steps,
        weights_bytes=sum(rank.weights_bytes for rank in loading),
        peak_rss_bytes=max(rank.peak_rss_bytes for rank in loading),
        load_done_bytes=sum(rank.done_bytes for rank in loading),
        load_total_bytes=sum(rank.total_bytes for rank in loading),
    )


def _worker_info(worker: WorkerRecord, replica: Replica | None) -> mesh_pb2.WorkerInfo:
    identity = worker.identity
    hello = mesh_pb2.Hello(
        protocol_version=identity.protocol_version,
        build=identity.build,
        worker_id=identity.worker_id,
        node=identity.node,
        address=identity.address,
        device=mesh_pb2.Device(
            kind=identity.device_kind,
            name=identity.device_name,
            memory_bytes=identity.memory_bytes,
        ),
        pid=identity.pid,
        metrics_address=identity.metrics_address,
    )
    usage = usage_to_proto(worker.usage) if worker.usage else None
    return mesh_pb2.WorkerInfo(hello=hello, state=_worker_state(worker, replica), usage=usage)


def _worker_state(worker: WorkerRecord, replica: Replica | None) -> stage_pb2.WorkerState:
    """The state as the coordinator has recorded it; `Stage.Status` has the worker's own."""
    if worker.held is None:
        is_loading = replica is not None and replica.phase is Phase.LOADING
        return stage_pb2.WORKER_STATE_LOADING if is_loading else stage_pb2.WORKER_STATE_EMPTY
    is_serving = replica is not None and replica.is_serving
    return stage_pb2.WORKER_STATE_SERVING if is_serving else stage_pb2.WORKER_STATE_LOADED
