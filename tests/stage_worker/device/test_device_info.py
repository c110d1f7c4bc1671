"""The description of a worker's device."""

import pytest
import torch

from protos import stage_pb2
from stage_worker.device.device_info import describe_device


@pytest.mark.parametrize("has_units", [False, True])
def test_describe_device_cpu_lists_bfloat16_only_with_hardware_support(
    has_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_units)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    device = describe_device("cpu")
    expected = [stage_pb2.DTYPE_FLOAT32, stage_pb2.DTYPE_BFLOAT16]
    assert list(device.dtypes) == expected[: 1 + has_units]
    assert device.memory_bytes > 0
