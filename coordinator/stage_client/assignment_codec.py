"""Owns how a worker's part and its options look on the wire."""

from typing import Final

from coordinator.membership.assignment import Assignment
from protos import stage_pb2

DTYPES: Final = {
    "float32": stage_pb2.DTYPE_FLOAT32,
    "bfloat16": stage_pb2.DTYPE_BFLOAT16,
    "float16": stage_pb2.DTYPE_FLOAT16,
}
BACKENDS: Final = {
    "auto": stage_pb2.COLLECTIVE_BACKEND_AUTO,
    "shm": stage_pb2.COLLECTIVE_BACKEND_SHM,
    "gloo": stage_pb2.COLLECTIVE_BACKEND_GLOO,
    "nccl": stage_pb2.COLLECTIVE_BACKEND_NCCL,
}
OVERLAPS: Final = {
    "auto": stage_pb2.OVERLAP_AUTO,
    "on": stage_pb2.OVERLAP_ON,
    "off": stage_pb2.OVERLAP_OFF,
}


def assignment_to_proto(assignment: Assignment) -> stage_pb2.Assignment:
    """What `Stage.Load` takes and `Stage.Status` tells."""
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
        dtype=DTYPES[assignment.dtype],
        block_size=assignment.block_size,
        max_model_len=assignment.max_model_len,
        kv_memory_bytes=assignment.kv_memory_bytes,
    )


def assignment_from_proto(message: stage_pb2.Assignment) -> Assignment | None:
    """What a worker says that it holds; None for what this build would not ask for."""
    dtype = next((name for name, value in DTYPES.items() if value == message.dtype), None)
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
