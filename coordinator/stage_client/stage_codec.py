"""Defines the epoch that the ranks of a replica share; encodes epochs and assignments."""

from dataclasses import dataclass
from typing import Final

from coordinator.membership.assignment import Assignment
from protos import stage_pb2

_DTYPES: Final = {
    "float32": stage_pb2.DTYPE_FLOAT32,
    "bfloat16": stage_pb2.DTYPE_BFLOAT16,
    "float16": stage_pb2.DTYPE_FLOAT16,
}
_BACKENDS: Final = {
    "auto": stage_pb2.COLLECTIVE_BACKEND_AUTO,
    "shm": stage_pb2.COLLECTIVE_BACKEND_SHM,
    "gloo": stage_pb2.COLLECTIVE_BACKEND_GLOO,
    "nccl": stage_pb2.COLLECTIVE_BACKEND_NCCL,
}
_OVERLAPS: Final = {
    "auto": stage_pb2.OVERLAP_AUTO,
    "on": stage_pb2.OVERLAP_ON,
    "off": stage_pb2.OVERLAP_OFF,
}


@dataclass(frozen=True, slots=True)
class EpochId:
    """The life of one replica between two changes of its workers."""

    coordinator_id: str
    counter: int

    def to_proto(self) -> stage_pb2.EpochId:
        """Encodes the id."""
        return stage_pb2.EpochId(coordinator_id=self.coordinator_id, counter=self.counter)


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """The parameters of one epoch, equal on all ranks of a replica."""

    epoch: EpochId
    replica: int
    num_kv_blocks: int
    max_sequences: int
    max_step_tokens: int
    window: int
    backend: str
    collective_timeout_seconds: float
    overlap: str


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The position of one rank; `next_addresses` are the ranks of the next stage in order."""

    stage: int
    rank: int
    next_addresses: tuple[str, ...]
    num_senders: int


def open_epoch_request(plan: EpochPlan, position: RankPosition) -> stage_pb2.OpenEpochRequest:
    """The request that opens the epoch `plan` on one rank."""
    return stage_pb2.OpenEpochRequest(
        epoch=plan.epoch.to_proto(),
        replica=plan.replica,
        stage=position.stage,
        rank=position.rank,
        num_kv_blocks=plan.num_kv_blocks,
        max_sequences=plan.max_sequences,
        max_step_tokens=plan.max_step_tokens,
        window=plan.window,
        next=[
            stage_pb2.Peer(address=address, rank=rank)
            for rank, address in enumerate(position.next_addresses)
        ],
        num_senders=position.num_senders,
        backend=_BACKENDS[plan.backend],
        collective_timeout_seconds=plan.collective_timeout_seconds,
        overlap=_OVERLAPS[plan.overlap],
    )


def assignment_to_proto(assignment: Assignment) -> stage_pb2.Assignment:
    """Encodes an assignment for `Stage.Load`, or to compare it with `Stage.Status`."""
    return stage_pb2.Assignment(
        replica=assignment.replica,
        stage=assignment.stage,
        num_stages=assignment.num_stages,
        rank=assignment.rank,
        tp_size=assignment.tp_size,
        first_layer=assignment.first_layer,
        num_layers=assignment.num_layers,
        model=assignment.model,
        weights_fingerprint=assignment.weights_fingerprint,
        dtype=_DTYPES[assignment.dtype],
        block_size=assignment.block_size,
        max_model_len=assignment.max_model_len,
        kv_memory_bytes=assignment.kv_memory_bytes,
    )


def assignment_from_proto(message: stage_pb2.Assignment) -> Assignment | None:
    """Decodes what a worker holds; None for a dtype that this build does not use."""
    dtype = next((name for name, value in _DTYPES.items() if value == message.dtype), None)
    if dtype is None:
        return None
    return Assignment(
        replica=message.replica,
        stage=message.stage,
        num_stages=message.num_stages,
        rank=message.rank,
        tp_size=message.tp_size,
        first_layer=message.first_layer,
        num_layers=message.num_layers,
        model=message.model,
        weights_fingerprint=message.weights_fingerprint,
        dtype=dtype,
        block_size=message.block_size,
        max_model_len=message.max_model_len,
        kv_memory_bytes=message.kv_memory_bytes,
    )
