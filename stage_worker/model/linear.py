"""Linear layers whose weight is converted once to the device's preferred layout.

A layer is split over ranks by its outputs, which are rows of the weight, or by its inputs, which
are columns; in the second case the caller sums the ranks' outputs.

Shapes: T tokens, I input features, O output features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stage_worker.model.weights import WeightReader

_ROWS_HINT = 32
"""The batch size that oneDNN optimizes for; measured, 1 and 512 rows are as fast."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The outputs `rows` of the checkpoint's layer `name`, which has `num_rows`."""

    name: str
    num_rows: int
    rows: range

    @classmethod
    def all_of(cls, name: str, num_rows: int) -> "Rows":
        """The whole layer."""
        return cls(name, num_rows, range(num_rows))


class Linear:
    """`x_TI @ weight_OI.T + bias_O`.

    On a CPU where oneDNN supports the weight's dtype, the weight is packed once, because MKL would
    pack it at each call. A row's result does not depend on the other rows.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._is_packed = _can_pack(weight_OI)
        self._weight = _pack(weight_OI) if self._is_packed else weight_OI
        self._bias_O = bias_O

    @classmethod
    def load(
        cls,
        reader: WeightReader,
        parts: Sequence[Rows],
        num_inputs: int,
        *,
        has_bias: bool,
        inputs: range | None = None,
    ) -> "Linear":
        """Reads several layers with the same `num_inputs` inputs as one, outputs in this order.

        `inputs` are this rank's inputs, by default all; if not all, only one rank has the bias.
        """
        inputs = range(num_inputs) if inputs is None else inputs
        num_outputs = sum(len(part.rows) for part in parts)
        weight_OI = reader.empty(num_outputs, len(inputs))
        bias_O = reader.empty(num_outputs) if has_bias else None
        begin = 0
        for part in parts:
            end, row = begin + len(part.rows), part.rows.start
            shape = (part.num_rows, num_inputs)
            reader.read_into(
                f"{part.name}.weight", weight_OI[begin:end], shape, (row, inputs.start)
            )
            if bias_O is not None:
                reader.read_into(f"{part.name}.bias", bias_O[begin:end], shape[:1], (row, 0))
            begin = end
        return cls(weight_OI, bias_O)

    def __call__(self, x_TI: Tensor) -> Tensor:
        """The layer's output, [T, O]."""
        if not self._is_packed:
            return F.linear(x_TI, self._weight, self._bias_O)
        out_TO: Tensor = torch.ops.mkldnn._linear_pointwise(
            x_TI, self._weight, self._bias_O, "none", [], ""
        )
        return out_TO


def _can_pack(weight_OI: Tensor) -> bool:
    if weight_OI.device.type != "cpu":
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if weight_OI.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight_OI.dtype == torch.float32


def _pack(weight_OI: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _ROWS_HINT)
    return packed
