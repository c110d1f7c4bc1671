"""What devices say of their load."""

import pynvml
import pytest

from runtime.device_codec import usage_from_proto, usage_to_proto
from runtime.devices import DeviceUsage, make_probe


def test_host_tells_load_and_memory_but_no_temperature() -> None:
    usage = make_probe("cpu")()
    assert usage.utilization is not None
    assert 0 <= usage.utilization <= 1
    assert usage.memory_used_bytes is not None
    assert usage.memory_free_bytes is not None
    assert usage.temperature_celsius is None


def test_gpu_without_a_driver_tells_nothing_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError_LibraryNotFound()

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    usage = make_probe("cuda", "GPU-1")()
    assert usage == DeviceUsage()
    assert usage.memory_free_bytes is None


def test_gpu_that_lacks_one_figure_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
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
    "usage", [DeviceUsage(), DeviceUsage(utilization=0.0, memory_used_bytes=2**40)]
)
def test_usage_on_the_wire_keeps_what_is_absent_absent(usage: DeviceUsage) -> None:
    assert usage_from_proto(usage_to_proto(usage)) == usage
