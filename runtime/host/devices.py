"""Load of devices: from NVML for CUDA devices, from the operating system for CPUs.

A figure that is not available is None; a machine without NVIDIA's driver is no error.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil
import pynvml

from runtime.host.logs import get_logger

_MILLIWATTS: Final = 1000.0
_FRESH_SECONDS: Final = 0.5

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """One sample of a device; `utilization` is the mean since the previous one, in 0..1."""

    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None

    @property
    def memory_free_bytes(self) -> int | None:
        """Free memory in bytes."""
        if self.memory_total_bytes is None or self.memory_used_bytes is None:
            return None
        return self.memory_total_bytes - self.memory_used_bytes


DeviceProbe = Callable[[], DeviceUsage]


def make_probe(kind: str, uuid: str = "") -> DeviceProbe:
    """Makes the sampler of a device: `cpu` is the whole host, `cuda` the one with NVML's `uuid`."""
    return _remembering(_host_probe() if kind != "cuda" else _gpu_probe(uuid))


def visible_gpus() -> tuple[str, ...]:
    """The GPUs of this machine that this process may use, as CUDA_VISIBLE_DEVICES names them.

    Uses NVIDIA's driver, because torch needs seconds and GPU memory for it.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    try:
        pynvml.nvmlInit()
        return tuple(str(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()


def _remembering(look: DeviceProbe) -> DeviceProbe:
    """Samples at most every `_FRESH_SECONDS`: a scrape reads each figure separately."""
    usage, looked = DeviceUsage(), -math.inf

    def remembered() -> DeviceUsage:
        nonlocal usage, looked
        now = time.monotonic()
        if now - looked >= _FRESH_SECONDS:
            usage, looked = look(), now
        return usage

    return remembered


def _host_probe() -> DeviceProbe:
    psutil.cpu_percent()  # the first look has none before it
    return _host_usage


def _gpu_probe(uuid: str) -> DeviceProbe:
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except pynvml.NVMLError as error:
        _log.warning("device_not_watched", uuid=uuid, cause=str(error))
        return DeviceUsage
    return lambda: _gpu_usage(handle)


def _host_usage() -> DeviceUsage:
    memory = psutil.virtual_memory()
    return DeviceUsage(
        utilization=psutil.cpu_percent() / 100,
        memory_used_bytes=memory.total - memory.available,
        memory_total_bytes=memory.total,
    )


def _gpu_usage(handle: object) -> DeviceUsage:
    """Reads each figure separately: a device need not have all of them."""
    utilization = memory = power = temperature = None
    with suppress(pynvml.NVMLError):
        utilization = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    with suppress(pynvml.NVMLError):
        power = pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLIWATTS
    with suppress(pynvml.NVMLError):
        temperature = float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    return DeviceUsage(
        utilization=utilization,
        memory_used_bytes=memory.used if memory else None,
        memory_total_bytes=memory.total if memory else None,
        power_watts=power,
        temperature_celsius=temperature,
    )
