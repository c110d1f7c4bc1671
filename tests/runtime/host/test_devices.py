"""The load of devices."""

import math

import pynvml
import pytest

from runtime.host.devices import DeviceUsage, make_probe, visible_gpus
from runtime.protocol.device_codec import usage_from_proto, usage_to_proto


def test_host_reports_load_and_memory_but_no_temperature() -> None:
    usage = make_probe("cpu")()
    assert usage.utilization is not None
    assert 0 <= usage.utilization <= 1
    assert usage.memory_used_bytes is not None
    assert usage.memory_free_bytes is not None
    assert usage.temperature_celsius is None


def test_gpu_without_a_driver_reports_nothing_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError_LibraryNotFound()

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    usage = make_probe("cuda", "GPU-1")()
    assert usage == DeviceUsage()
    assert usage.memory_free_bytes is None


def test_gpu_that_lacks_one_figure_reports_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rates:
        gpu = 40

    def lack(handle: object) -> None:
        raise pynvml.NVMLError_NotSupported()

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", lambda handle: Rates)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", lack)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda handle: 250_000)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTemperature", lambda handle, sensor: 61)
    usage = make_probe("cuda", "1")()
    assert usage == DeviceUsage(utilization=0.4, power_watts=250.0, temperature_celsius=61.0)


@pytest.mark.parametrize(
    ("named", "expected"), [("0,2", ("0", "2")), (" GPU-a , ", ("GPU-a",)), ("", ())]
)
def test_visible_gpus_are_those_that_the_variable_names(
    monkeypatch: pytest.MonkeyPatch, named: str, expected: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == expected


def test_visible_gpus_without_the_variable_are_all_that_the_driver_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
    assert visible_gpus() == ("0", "1", "2")


@pytest.mark.parametrize(
    "usage", [DeviceUsage(), DeviceUsage(utilization=0.0, memory_used_bytes=2**40)]
)
def test_usage_on_the_wire_keeps_what_is_absent_absent(usage: DeviceUsage) -> None:
    assert usage_from_proto(usage_to_proto(usage)) == usage


def test_non_finite_usage_on_the_wire_is_absent() -> None:
    sampled = DeviceUsage(utilization=math.nan, memory_used_bytes=7, power_watts=math.inf)
    assert usage_from_proto(usage_to_proto(sampled)) == DeviceUsage(memory_used_bytes=7)
