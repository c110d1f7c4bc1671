"""One step's destination: what may be written into it, checked before it exists, and the copying.

Each payload is copied once, straight into the tensor that the device will read.

Shape suffixes: T tokens of the step, H this rank's interval of the hidden dimension.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from protos import stage_pb2
from runtime.errors import FrameError

TORCH_DTYPES: dict[stage_pb2.DType, torch.dtype] = {
    stage_pb2.DTYPE_FLOAT32: torch.float32,
    stage_pb2.DTYPE_BFLOAT16: torch.bfloat16,
    stage_pb2.DTYPE_FLOAT16: torch.float16,
}


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """What one rank expects of its senders during one epoch.

    `hidden_interval` is the part of the hidden dimension that the senders deliver together, and
    None where steps carry no activation: on the first stage.
    """

    epoch: stage_pb2.EpochId
    num_senders: int
    window: int
    max_step_tokens: int
    dtype: stage_pb2.DType
    hidden_interval: tuple[int, int] | None


@dataclass(slots=True)
class PartialStep:
    """A step of which some frames have come."""

    header: stage_pb2.StepHeader
    hidden_TH: torch.Tensor | None
    begun_at: float
    num_finished: int = 0
    intervals: list[tuple[int, int]] = field(default_factory=list)

    def open_slice(self, interval: tuple[int, int] | None, plan: ReceivePlan) -> "Slice":
        """Where the sender of `interval` writes; `FrameError` where another sender's is, too."""
        if self.hidden_TH is None or interval is None or plan.hidden_interval is None:
            return Slice(np.empty((0, 0), np.uint8))
        for begin, end in self.intervals:
            if interval[0] < end and begin < interval[1]:
                raise FrameError(
                    what="hidden interval", expected=f"none of [{begin}, {end})", actual=interval
                )
        self.intervals.append(interval)
        origin = plan.hidden_interval[0]
        item_bytes = self.hidden_TH.element_size()
        rows = self.hidden_TH.view(torch.uint8).numpy()
        return Slice(
            rows[:, (interval[0] - origin) * item_bytes : (interval[1] - origin) * item_bytes]
        )

    def check_covered(self, plan: ReceivePlan) -> None:
        """Raises `FrameError` unless the senders' intervals make up the plan's."""
        if self.hidden_TH is None or plan.hidden_interval is None:
            return
        num_received = sum(end - begin for begin, end in self.intervals)
        if num_received != self.hidden_TH.shape[1]:
            raise FrameError(
                what="hidden intervals", expected=plan.hidden_interval, actual=self.intervals
            )


class Slice:
    """One sender's part of one step: byte rows of the destination, filled front to back."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self._rows = rows
        self._num_received = 0

    def write(self, offset: int, payload: memoryview) -> None:
        """Copies the next bytes; `FrameError` where they do not follow or do not fit."""
        if offset != self._num_received:
            raise FrameError(what="payload offset", expected=self._num_received, actual=offset)
        end = offset + payload.nbytes
        if end > self._rows.size:
            raise FrameError(what="payload bytes", expected=self._rows.size, actual=end)
        if payload.nbytes:
            _write_bytes(self._rows, offset, np.frombuffer(payload, np.uint8))
        self._num_received = end

    def check_complete(self) -> None:
        """Raises `FrameError` while bytes are missing."""
        if self._num_received != self._rows.size:
            raise FrameError(
                what="payload bytes", expected=self._rows.size, actual=self._num_received
            )


def check_header(head: stage_pb2.Frame, max_step_tokens: int) -> int:
    """How many tokens the step of this first frame carries."""
    if not head.HasField("header"):
        raise FrameError(what="header", expected="on a step's first frame", actual="none")
    if head.header.step != head.step:
        raise FrameError(what="step of the header", expected=head.step, actual=head.header.step)
    num_tokens = sum(len(chunk.token_ids) for chunk in head.header.chunks)
    if num_tokens > max_step_tokens:
        raise FrameError(
            what="tokens of a step", expected=f"at most {max_step_tokens}", actual=num_tokens
        )
    return num_tokens


def check_activation(
    head: stage_pb2.Frame, num_tokens: int, plan: ReceivePlan
) -> tuple[int, int] | None:
    """The sender's interval of the hidden dimension, if the step carries an activation here."""
    carries = plan.hidden_interval is not None and num_tokens > 0
    if head.HasField("activation") != carries:
        raise FrameError(what="activation", expected=carries, actual=not carries)
    if plan.hidden_interval is None or not carries:
        return None
    spec = head.activation
    if spec.dtype != plan.dtype:
        raise FrameError(
            what="dtype",
            expected=stage_pb2.DType.Name(plan.dtype),
            actual=_dtype_name(spec.dtype),
        )
    if spec.num_tokens != num_tokens:
        raise FrameError(what="activation rows", expected=num_tokens, actual=spec.num_tokens)
    begin, end = plan.hidden_interval
    if not begin <= spec.hidden_begin < spec.hidden_end <= end:
        raise FrameError(
            what="hidden interval",
            expected=f"within [{begin}, {end})",
            actual=f"[{spec.hidden_begin}, {spec.hidden_end})",
        )
    return spec.hidden_begin, spec.hidden_end


def _dtype_name(dtype: int) -> str:
    known = {number: name for name, number in stage_pb2.DType.items()}
    return known.get(stage_pb2.DType.ValueType(dtype), str(dtype))


def empty_hidden(num_tokens: int, plan: ReceivePlan) -> torch.Tensor | None:
    """Room for a step's activation [T, H], uninitialized; None where the step carries none."""
    if plan.hidden_interval is None or num_tokens == 0:
        return None
    begin, end = plan.hidden_interval
    return torch.empty(num_tokens, end - begin, dtype=TORCH_DTYPES[plan.dtype])


def _write_bytes(rows: NDArray[np.uint8], offset: int, source: NDArray[np.uint8]) -> None:
    """Copy `source` into `rows` at row-major byte `offset`: a part of a row, whole rows, a part."""
    width = rows.shape[1]
    while source.size:
        row, column = divmod(offset, width)
        if column == 0 and source.size >= width:
            num_rows = source.size // width
            taken = num_rows * width
            rows[row : row + num_rows] = source[:taken].reshape(num_rows, width)
        else:
            taken = min(width - column, source.size)
            rows[row, column : column + taken] = source[:taken]
        source = source[taken:]
        offset += taken
