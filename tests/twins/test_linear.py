"""Few rows times a large matrix are computed in forms of torchkv's own: the same products."""

import pytest
import torch
import torch.nn.functional as F

from torchkv.linear import linear

D = 97


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 3), (2, 1), (5, 4)], ids=["one", "tokens", "rows", "many"]
)
@pytest.mark.parametrize("outputs", [600, 602, 601], ids=["eight-parts", "two-parts", "one-part"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_a_product_with_few_rows_is_that_of_linear(shape, outputs, biased):
    made = torch.Generator().manual_seed(3)
    weight_ED, bias_E, x_BTD = (
        torch.randn(size, generator=made, dtype=torch.float64)
        for size in ((outputs, D), (outputs,), (*shape, D))
    )
    p = {"weight": weight_ED} | ({"bias": bias_E} if biased else {})

    y_BTE = linear(p, x_BTD)

    torch.testing.assert_close(y_BTE, F.linear(x_BTD, weight_ED, p.get("bias")))


@pytest.mark.parametrize("rows", [1, 2])
def test_gradients_pass_through_a_product_with_few_rows(rows):
    made = torch.Generator().manual_seed(4)
    weight_ED = torch.randn(600, D, generator=made, dtype=torch.float64).requires_grad_()
    x_BTD = torch.randn(rows, 1, D, generator=made, dtype=torch.float64)

    (ours,) = torch.autograd.grad(linear({"weight": weight_ED}, x_BTD).square().sum(), weight_ED)
    (whole,) = torch.autograd.grad(F.linear(x_BTD, weight_ED).square().sum(), weight_ED)

    torch.testing.assert_close(ours, whole)
