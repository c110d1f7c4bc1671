"""Makes the group of a stage's ranks for one epoch.

Nothing is waited for here: ranks meet in the first step's agreement, whatever the order in which
they opened the epoch.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from runtime.errors import InvalidRequestError
from runtime.protocol.backends import BACKEND_DEVICES
from stage_worker.collectives.group import SOLO, RankGroup
from stage_worker.collectives.overlap import min_split_tokens
from stage_worker.collectives.shared_memory import SharedMemoryGroup
from stage_worker.collectives.shared_memory_segment import SharedBlock
from stage_worker.collectives.torch_group import TorchGroup

BACKENDS = ("auto", *BACKEND_DEVICES)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """`name` is the same on all ranks of a stage and on no other, and new in every epoch.

    `backend` is one of `BACKENDS`; "auto" is nccl for CUDA devices and shm for CPUs.
    `timeout_seconds` is the longest wait for another rank. `overlap` says which steps are computed
    in two slices (`overlap.py`).
    """

    name: str
    rank: int
    size: int
    backend: str = "auto"
    timeout_seconds: float = 30.0
    device: str = "cpu"
    overlap: str = "auto"


def open_group(spec: GroupSpec) -> RankGroup:
    """This rank's end; whoever opens it also closes it, on the device's thread.

    `close` must not run beside a call of the device's thread, so `abort` comes first: it ends what
    that thread waits for. Raises `InvalidRequestError` for a backend that does not fit the device,
    `SharedMemoryError` where there is no room for what the ranks share.
    """
    backend = check_backend(spec.backend, spec.device)
    if spec.size == 1:
        return SOLO
    block = SharedBlock(spec.name, spec.rank, spec.size, spec.timeout_seconds)
    min_tokens = min_split_tokens(spec.overlap, backend)
    if backend == "shm":
        return SharedMemoryGroup(block, min_tokens)
    return TorchGroup(block, backend, spec.timeout_seconds, min_tokens)


def check_backend(backend: str, device: str) -> str:
    """The backend, with "auto" decided; raises `InvalidRequestError` where it cannot be used."""
    kind = torch.device(device).type
    if backend == "auto":
        return "nccl" if kind == "cuda" else "shm"
    if backend not in BACKENDS:
        _refuse(f"{backend!r} is none of {', '.join(BACKENDS)}")
    if BACKEND_DEVICES[backend] != kind:
        _refuse(f"{backend} does not serve {device} devices; leave it at auto")
    if backend == "nccl" and not dist.is_nccl_available():
        _refuse("this build of torch has no nccl")
    return backend


def _refuse(problem: str) -> None:
    raise InvalidRequestError(field="backend", problem=problem)
