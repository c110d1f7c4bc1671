"""Checks an assignment against its own numbers, the device and the model; reads no files."""

from protos import stage_pb2
from runtime.errors import AssignmentError, InvalidRequestError, NotEnoughMemoryError
from stage_worker.device.device_info import describe_device

DTYPE_NAMES = {
    stage_pb2.DTYPE_FLOAT32: "float32",
    stage_pb2.DTYPE_BFLOAT16: "bfloat16",
    stage_pb2.DTYPE_FLOAT16: "float16",
}


def check_assignment(assignment: stage_pb2.Assignment) -> None:
    """Refuses an assignment that is invalid for every model."""
    for name in ("num_stages", "tp_size", "num_layers", "block_size", "max_model_len"):
        if getattr(assignment, name) < 1:
            raise InvalidRequestError(field=f"assignment.{name}", problem="must be at least 1")
    if assignment.dtype not in DTYPE_NAMES:
        raise InvalidRequestError(
            field="assignment.dtype", problem=f"{assignment.dtype} is not a known dtype"
        )
    if assignment.rank >= assignment.tp_size:
        raise AssignmentError(
            expected=f"a rank below {assignment.tp_size}", actual=f"rank {assignment.rank}"
        )
    if assignment.stage >= assignment.num_stages:
        raise AssignmentError(
            expected=f"a stage below {assignment.num_stages}", actual=f"stage {assignment.stage}"
        )


def check_kv_memory(kv_memory_bytes: int, device_kind: str) -> None:
    """Refuses a cache larger than the device; it is allocated later, when that would be fatal."""
    memory_bytes = describe_device(device_kind).memory_bytes
    if kv_memory_bytes > memory_bytes:
        raise NotEnoughMemoryError(
            needed_bytes=kv_memory_bytes, available_bytes=memory_bytes, what="the KV cache"
        )


def check_layers(assignment: stage_pb2.Assignment, num_layers: int) -> None:
    """Checks that only the first stage has layer 0 and only the last stage the last layer."""
    begin, end = assignment.first_layer, assignment.first_layer + assignment.num_layers
    is_last = assignment.stage == assignment.num_stages - 1
    is_first = assignment.stage == 0
    if end > num_layers or (begin == 0) != is_first or (end == num_layers) != is_last:
        raise AssignmentError(
            expected=f"stage {assignment.stage} of {assignment.num_stages} of {num_layers} layers",
            actual=f"layers [{begin}, {end})",
        )
