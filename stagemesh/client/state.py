"""Owns the client's picture of a mesh: plan, workers, stages and load, as one snapshot.

The classes mirror `protos/mesh.proto`; nothing here asks for a snapshot or shows one.
"""

from dataclasses import dataclass, replace

from protos import mesh_pb2, stage_pb2
from stagemesh.client.scheduler_state import SchedulerState, scheduler_from_proto
from stagemesh.client.stage_state import StageState, stage_from_proto


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One worker process that joined; `state` is `empty`, `loading`, `loaded` or `serving`."""

    worker_id: str
    node: str
    address: str
    device: str
    memory_bytes: int
    pid: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One pipeline: its epoch, its memory in use its stages and what it is doing.

    Tokens are sums since the coordinator started.
    """

    replica: int
    epoch: int
    num_kv_blocks: int
    num_kv_blocks_used: int
    block_size: int
    num_slots_used: int
    max_sequences: int
    num_steps_in_flight: int
    num_steps: int
    scheduler: SchedulerState
    stages: tuple[StageState, ...]
    num_prompt_tokens: int
    num_generated_tokens: int
    phase: str
    serving: bool
    num_waiting: int

    def since(self, earlier: "ReplicaState") -> "ReplicaState":
        """The sums of the time after `earlier`; all of them where a new epoch began meanwhile."""
        if self.epoch != earlier.epoch:
            return self
        stages = zip(self.stages, earlier.stages, strict=True)
        return replace(
            self,
            num_steps=self.num_steps - earlier.num_steps,
            num_prompt_tokens=self.num_prompt_tokens - earlier.num_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens - earlier.num_generated_tokens,
            stages=tuple(now.since(before) for now, before in stages),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryState:
    """One end of an epoch that served; `seconds` is 0 until requests are served again."""

    replica: int
    epoch: int
    cause: str
    detail: str
    ended_unix_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshState:
    """A mesh at one moment; `failure` is the reason why it cannot form, or empty."""

    build: str
    coordinator_id: str
    model: str
    ready: bool
    phase: str
    failure: str
    num_running: int
    num_waiting: int
    uptime_seconds: float
    max_model_len: int
    replicas: tuple[ReplicaState, ...]
    workers: tuple[WorkerState, ...]
    mesh_address: str
    recoveries: tuple[RecoveryState, ...]


def state_from_proto(message: mesh_pb2.GetStateResponse) -> MeshState:
    """One `GetState` answer as a `MeshState`."""
    return MeshState(
        build=message.build,
        coordinator_id=message.coordinator_id,
        model=message.model,
        ready=message.ready,
        phase=message.phase,
        failure=message.failure,
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        uptime_seconds=message.uptime_seconds,
        max_model_len=message.max_model_len,
        replicas=tuple(_replica_from_proto(replica) for replica in message.replicas),
        workers=tuple(_worker_from_proto(worker) for worker in message.workers),
        mesh_address=message.mesh_address,
        recoveries=tuple(_recovery_from_proto(recovery) for recovery in message.recoveries),
    )


def _recovery_from_proto(message: mesh_pb2.Recovery) -> RecoveryState:
    return RecoveryState(
        replica=message.replica,
        epoch=message.epoch,
        cause=message.cause,
        detail=message.detail,
        ended_unix_seconds=message.ended_unix_seconds,
        seconds=message.seconds,
    )


def _replica_from_proto(message: mesh_pb2.ReplicaState) -> ReplicaState:
    return ReplicaState(
        replica=message.replica,
        epoch=message.epoch.counter,
        num_kv_blocks=message.num_kv_blocks,
        num_kv_blocks_used=message.num_kv_blocks_used,
        block_size=message.block_size,
        num_slots_used=message.num_slots_used,
        max_sequences=message.max_sequences,
        num_steps_in_flight=message.num_steps_in_flight,
        num_steps=message.num_steps,
        scheduler=scheduler_from_proto(message.scheduler),
        stages=tuple(stage_from_proto(stage) for stage in message.stages),
        num_prompt_tokens=message.num_prompt_tokens,
        num_generated_tokens=message.num_generated_tokens,
        phase=message.phase,
        serving=message.serving,
        num_waiting=message.num_waiting,
    )


def _worker_from_proto(message: mesh_pb2.WorkerInfo) -> WorkerState:
    hello = message.hello
    name = stage_pb2.WorkerState.Name(message.state)
    return WorkerState(
        worker_id=hello.worker_id,
        node=hello.node,
        address=hello.address,
        device=hello.device.kind,
        memory_bytes=hello.device.memory_bytes,
        pid=hello.pid,
        state=name.removeprefix("WORKER_STATE_").lower(),
    )
