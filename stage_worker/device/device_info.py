"""Describes the device and reads the memory of this process."""

import platform
import resource
import sys
from pathlib import Path

import torch

from protos import mesh_pb2, stage_pb2
from runtime.host.memory import total_memory_bytes

_PROC_STATUS = Path("/proc/self/status")
_CPU_INFO = Path("/proc/cpuinfo")


def describe_device(kind: str) -> mesh_pb2.Device:
    """The device of this worker, with its total memory."""
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(0)
        return mesh_pb2.Device(
            kind=kind,
            name=properties.name,
            memory_bytes=properties.total_memory,
            dtypes=_fast_dtypes(kind),
        )
    return mesh_pb2.Device(
        kind=kind, name=_cpu_name(), memory_bytes=total_memory_bytes(), dtypes=_fast_dtypes(kind)
    )


def device_uuid(kind: str) -> str:
    """The UUID that NVIDIA's tools use; empty for a CPU."""
    return str(torch.cuda.get_device_properties(0).uuid) if kind == "cuda" else ""


def rss_bytes() -> int:
    """Resident memory of this process now; its peak on systems that only report that."""
    return _proc_bytes("VmRSS") or peak_rss_bytes()


def peak_rss_bytes() -> int:
    """Peak resident memory of this process."""
    # Preferred to ru_maxrss, which starts at the parent's memory at the fork.
    peak = _proc_bytes("VmHWM")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _proc_bytes(field: str) -> int | None:
    if not _PROC_STATUS.exists():
        return None
    for line in _PROC_STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _fast_dtypes(kind: str) -> list[stage_pb2.DType]:
    """The dtypes with hardware support; an emulated bfloat16 is far slower than float32."""
    dtypes = [stage_pb2.DTYPE_FLOAT32]
    if kind == "cuda":
        dtypes.append(stage_pb2.DTYPE_FLOAT16)
        if torch.cuda.is_bf16_supported(including_emulation=False):
            dtypes.append(stage_pb2.DTYPE_BFLOAT16)
    elif torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        dtypes.append(stage_pb2.DTYPE_BFLOAT16)
    return dtypes


def _cpu_name() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
