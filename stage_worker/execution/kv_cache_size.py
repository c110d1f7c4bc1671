"""How much memory the KV cache of a stage takes where nobody says."""

from typing import Final

import torch

_CPU_BYTES: Final = 2**30
"""The rest of the machine is not ours; memory that no token touched is not resident."""

_GPU_SHARE: Final = 0.9
"""Of a GPU's memory for weights and cache together; the rest is for activations and CUDA itself."""


def default_kv_bytes(device: torch.device, num_sharers: int) -> int:
    """Bytes for the cache: 1 GiB on a CPU; on a GPU what loaded weights leave of this one's part.

    `num_sharers` workers, this one among them, divide the device.
    """
    if device.type == "cpu":
        return _CPU_BYTES
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    ours = int(_GPU_SHARE * total_bytes / num_sharers)
    return max(0, ours - torch.cuda.memory_allocated(device))
