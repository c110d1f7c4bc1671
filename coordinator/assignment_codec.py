"""Owns how a worker's part and its options look on the wire."""

from typing import Final

from coordinator.assignment import Assignment
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
