"""The packed layout gives the same results as torch, row by row."""

import pytest
import torch
import torch.nn.functional as F

from stage_worker.model.linear import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [1, 2, 17, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_any_dtype_and_rows_equals_torch(
    dtype: torch.dtype, num_rows: int, has_bias: bool
) -> None:
    torch.manual_seed(0)
    weight_OI = torch.randn(48, 80).to(dtype)
    bias_O = torch.randn(48).to(dtype) if has_bias else None
    x_TI = torch.randn(num_rows, 80).to(dtype)
    expected = F.linear(x_TI, weight_OI, bias_O)
    with torch.inference_mode():
        actual = Linear(weight_OI, bias_O)(x_TI)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)


def test_linear_on_a_slice_of_columns_takes_strided_input() -> None:
    torch.manual_seed(0)
    weight_OI = torch.randn(48, 80)
    x_TI = torch.randn(5, 160)[:, 40:120]
    with torch.inference_mode():
        actual = Linear(weight_OI, None)(x_TI)
    torch.testing.assert_close(actual, F.linear(x_TI, weight_OI), rtol=1e-5, atol=1e-4)
