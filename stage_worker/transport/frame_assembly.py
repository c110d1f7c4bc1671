"""Checks the frames of a step and copies their payloads into the step's input tensor.

Frames are checked before memory is allocated. Each payload is copied once, into the tensor that the
device reads.

Shape suffixes: T tokens of the step, H this rank's interval of the hidden dimension.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from protos import stage_pb2
from runtime.errors import FrameError
from stage_worker.device.host_device_copy import HostDeviceCopier
from stage_worker.transport.hidden_partition import Interval

TORCH_DTYPES: dict[stage_pb2.DType, torch.dtype] = {
    stage_pb2.DTYPE_FLOAT32: torch.float32,
    stage_pb2.DTYPE_BFLOAT16: torch.bfloat16,
    stage_pb2.DTYPE_FLOAT16: torch.float16,
}


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """What one rank receives during one epoch.

    `senders` maps ranks of the previous stage to the part of `hidden_interval` that each sends. On
    the first stage, whose only sender is the coordinator, steps carry no activation: the part and
    `hidden_interval` are None.
    """

    epoch: stage_pb2.EpochId
    senders: Mapping[int, Interval | None]
    window: int
    max_step_tokens: int
    dtype: stage_pb2.DType
    hidden_interval: Interval | None


@dataclass(slots=True)
class PartialStep:
    """A step of which some frames have arrived."""

    header: stage_pb2.StepHeader
    hidden_TH: torch.Tensor | None
    begun_at: float
    num_finished: int = 0

    def open_writer(self, sender_rank: int, plan: ReceivePlan) -> "PayloadWriter":
        """A writer into this sender's part of the step."""
        interval = plan.senders[sender_rank]
        if self.hidden_TH is None or interval is None or plan.hidden_interval is None:
            return PayloadWriter(np.empty((0, 0), np.uint8))
        origin = plan.hidden_interval[0]
        item_bytes = self.hidden_TH.element_size()
        rows = self.hidden_TH.view(torch.uint8).numpy()
        return PayloadWriter(
            rows[:, (interval[0] - origin) * item_bytes : (interval[1] - origin) * item_bytes]
        )


class PayloadWriter:
    """Writes one sender's part of one step into the byte rows of its tensor, in order."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self._rows = rows
        self._num_received = 0

    def write(self, offset: int, payload: memoryview) -> None:
        """Copies the next bytes; raises `FrameError` if they do not follow or do not fit."""
        if offset != self._num_received:
            raise FrameError(what="payload offset", expected=self._num_received, actual=offset)
        end = offset + payload.nbytes
        if end > self._rows.size:
            raise FrameError(what="payload bytes", expected=self._rows.size, actual=end)
        if payload.nbytes:
            _write_bytes(self._rows, offset, np.frombuffer(payload, np.uint8))
        self._num_received = end

    def check_complete(self) -> None:
        """Raises `FrameError` if bytes are missing."""
        if self._num_received != self._rows.size:
            raise FrameError(
                what="payload bytes", expected=self._rows.size, actual=self._num_received
            )


def check_header(head: stage_pb2.Frame, max_step_tokens: int) -> int:
    """The number of tokens of the step that this frame begins; raises `FrameError`."""
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


def check_same_header(
    header: stage_pb2.StepHeader, other: stage_pb2.StepHeader, sender_rank: int
) -> None:
    """Raises `FrameError` if two senders' headers of the same step differ."""
    if header != other:
        raise FrameError(
            what=f"header of step {header.step} from sender {sender_rank}",
            expected=f"that of the other senders, {_digest(other)}",
            actual=_digest(header),
        )


def check_activation(head: stage_pb2.Frame, num_tokens: int, plan: ReceivePlan) -> None:
    """Raises `FrameError` unless the frame announces the activation that the plan expects."""
    interval = plan.senders[head.sender_rank]
    carries = interval is not None and num_tokens > 0
    if head.HasField("activation") != carries:
        raise FrameError(what="activation", expected=carries, actual=not carries)
    if interval is None or not carries:
        return
    spec = head.activation
    if spec.dtype != plan.dtype:
        raise FrameError(
            what="dtype",
            expected=stage_pb2.DType.Name(plan.dtype),
            actual=_dtype_name(spec.dtype),
        )
    if spec.num_tokens != num_tokens:
        raise FrameError(what="activation rows", expected=num_tokens, actual=spec.num_tokens)
    if (spec.hidden_begin, spec.hidden_end) != interval:
        raise FrameError(
            what=f"hidden interval of sender {head.sender_rank}",
            expected=f"[{interval[0]}, {interval[1]})",
            actual=f"[{spec.hidden_begin}, {spec.hidden_end})",
        )


def _digest(header: stage_pb2.StepHeader) -> str:
    serialized = header.SerializeToString(deterministic=True)
    return f"digest {hashlib.blake2b(serialized, digest_size=8).hexdigest()}"


def _dtype_name(dtype: int) -> str:
    known = {number: name for name, number in stage_pb2.DType.items()}
    return known.get(stage_pb2.DType.ValueType(dtype), str(dtype))


def empty_hidden(
    num_tokens: int, plan: ReceivePlan, transfers: HostDeviceCopier
) -> torch.Tensor | None:
    """An uninitialized tensor for a step's activation, [T, H]; None if the step has none."""
    if plan.hidden_interval is None or num_tokens == 0:
        return None
    begin, end = plan.hidden_interval
    return transfers.empty(num_tokens, end - begin, TORCH_DTYPES[plan.dtype])


def _write_bytes(rows: NDArray[np.uint8], offset: int, source: NDArray[np.uint8]) -> None:
    """Copies `source` into `rows` from the row-major byte `offset` on, whole rows at once."""
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
