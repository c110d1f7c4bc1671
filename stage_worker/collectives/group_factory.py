"""Makes the group of a stage's ranks for one epoch.

Nothing is waited for here: ranks meet in the first step's agreement, whatever the order in which
they opened the epoch.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from runtime.errors import InvalidRequestError
from runtime.protocol.backends import BACKEND_DEVICES
from stage_worker.collectives.group import SINGLE_RANK, RankGroup
from stage_worker.collectives.shared_memory import SharedMemoryGroup
from stage_worker.collectives.shared_memory_segment import SharedMemorySegment
from stage_worker.collectives.torch_group import TorchGroup

BACKENDS = ("auto", *BACKEND_DEVICES)
OVERLAPS = ("auto", "on", "off")

_PAYS_FROM: Final = {"shm": None, "gloo": 256, "nccl": 512}


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
        return SINGLE_RANK
    block = SharedMemorySegment(spec.name, spec.rank, spec.size, spec.timeout_seconds)
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


def min_split_tokens(overlap: str, backend: str) -> int | None:
    """Steps of so many tokens are cut in two; None: none is. `overlap` is one of `OVERLAPS`.

    "on" cuts wherever there is something to cut, "auto" where it should pay, by the device that a
    backend is for. Nothing but the arguments plays a part, so all ranks come to the same.

    - nccl, GPUs: in the time in which a GPU reads one weight of two bytes it multiplies by it 200
      to 300 times (H100: 989 TFLOP/s, 3.35 TB/s), so slices have at least 256 tokens. The sum is
      made by NCCL's own kernels on another stream, over links that computing does not need.
    - gloo, CPUs: a sum takes 2 ms and 6 to 11 ns an element, much of it waiting for sockets and
      threads, beside 5 to 12 ms in which a small layer's half computes 256 tokens. A product of t
      tokens takes as long as 16 + t rows of it, so slices of 128 cost 6%. Beyond some 2,000
      features a sum is hardly more than that, and little is won or lost.
    - shm, CPUs: ranks copy and add up in the thread that computes, so that only waiting for a
      slower rank could be hidden. Where shares are uneven, it is the same one in every layer and
      sets the pace either way; what chance makes uneven is less than what slices cost.
    """
    match overlap:
        case "on":
            return 2
        case "off":
            return None
    return _PAYS_FROM[backend]


def _refuse(problem: str) -> None:
    raise InvalidRequestError(field="backend", problem=problem)
