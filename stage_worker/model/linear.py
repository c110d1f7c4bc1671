"""Linear layers whose weight is laid out once for the device and kept in that layout only.

Shapes: T tokens, I input features, O output features.

A layer that is cut over ranks will own its cut here: `Linear.load` names the checkpoint's tensors
and their rows, so an interval of rows or columns is a change of this file alone.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from stage_worker.weights import WeightReader

_ROWS_HINT = 32
"""What oneDNN lays the weight out for; measured, the layout is as good for 1 and for 512 rows."""


class Linear:
    """`x_TI @ weight_OI.T + bias_O`.

    On a CPU that oneDNN serves in the weight's dtype, the weight is packed once, because MKL packs
    it anew at each call; the plain one is dropped. A row's result does not depend on the others.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self._is_packed = _can_pack(weight_OI)
        self._weight = _pack(weight_OI) if self._is_packed else weight_OI
        self._bias_O = bias_O

    @classmethod
    def load(
        cls, reader: WeightReader, parts: Mapping[str, int], num_inputs: int, *, has_bias: bool
    ) -> "Linear":
        """Several layers with one input as one: `parts` maps their names to their outputs."""
        num_outputs = sum(parts.values())
        weight_OI = reader.empty(num_outputs, num_inputs)
        bias_O = reader.empty(num_outputs) if has_bias else None
        begin = 0
        for name, size in parts.items():
            reader.read_into(f"{name}.weight", weight_OI[begin : begin + size])
            if bias_O is not None:
                reader.read_into(f"{name}.bias", bias_O[begin : begin + size])
            begin += size
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
