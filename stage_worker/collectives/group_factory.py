"""Opens the group of a stage's ranks for one epoch, and decides which steps it overlaps.

Opening waits for no other rank: ranks meet in the first step's agreement, in any order of opening.
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
    `timeout_seconds` is the longest wait for another rank. `overlap` selects the steps that are
    computed in two slices (`min_split_tokens`).
    """

    name: str
    rank: int
    size: int
    backend: str = "auto"
    timeout_seconds: float = 30.0
    device: str = "cpu"
    overlap: str = "auto"


def open_group(spec: GroupSpec) -> RankGroup:
    """Opens this rank's end; the caller closes it, on the device's thread.

    `close` must not run during another call on that thread; `abort` ends what such a call waits
    for. Raises `InvalidRequestError` for a backend that does not fit the device, and
    `SharedMemoryError` if there is no room for the segment.
    """
    backend = check_backend(spec.backend, spec.device)
    if spec.size == 1:
        return SINGLE_RANK
    segment = SharedMemorySegment(spec.name, spec.rank, spec.size, spec.timeout_seconds)
    min_tokens = min_split_tokens(spec.overlap, backend)
    if backend == "shm":
        return SharedMemoryGroup(segment, min_tokens)
    return TorchGroup(segment, backend, spec.timeout_seconds, min_tokens)


def check_backend(backend: str, device: str) -> str:
    """Resolves "auto"; raises `InvalidRequestError` for a backend that cannot be used."""
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
    """The fewest tokens of a step that is computed in two slices; None: no step is.

    While one slice's all-reduce is in progress, the other slice computes (DeepSeek and SGLang call
    this two-batch overlap). Every weight is read twice, so a slice must be large enough to be bound
    by arithmetic; a sequence that is split reads its cache twice.

    `overlap` is one of `OVERLAPS`: "on" splits every step of two tokens or more, "auto" those for
    which it should pay, by backend. The result depends on the arguments alone, so it is the same on
    all ranks.

    - nccl, GPUs: while a GPU reads one weight of two bytes it does 200 to 300 multiplications
      (H100: 989 TFLOP/s, 3.35 TB/s), so slices have at least 256 tokens. NCCL's kernels sum on
      another stream, over links that computation does not use.
    - gloo, CPUs: a sum takes 2 ms and 6 to 11 ns per element, mostly waits for sockets and threads;
      half a small layer computes 256 tokens in 5 to 12 ms. A product of t tokens takes as long as
      16 + t rows, so slices of 128 cost 6%. Beyond about 2,000 features the gain is near zero.
    - shm, CPUs: ranks copy and add in the computing thread, so only waits for a slower rank could
      be hidden. With uneven shares the same rank is the slowest in every layer and limits the speed
      either way; random unevenness is smaller than the cost of slices.
    """
    match overlap:
        case "on":
            return 2
        case "off":
            return None
    return _PAYS_FROM[backend]


def _refuse(problem: str) -> None:
    raise InvalidRequestError(field="backend", problem=problem)
