"""When a step is computed in two slices of its tokens that hide each other's sums over the ranks.

While one slice's sum is under way, the other computes (DeepSeek and SGLang call it two-batch
overlap). The price is that every weight is read twice, so a slice must be large enough to be bound
by arithmetic and not by reading weights, and that a sequence that is cut reads its cache twice.
"""

from typing import Final

OVERLAPS = ("auto", "on", "off")

_PAYS_FROM: Final = {"shm": None, "gloo": 256, "nccl": 512}


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
