"""Few rows times a large matrix are computed in forms of each twin's own: the same products."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxkv import linear as in_jax
from torchkv import linear as in_torch
from torchkv.linear import linear

D = 227  # 600 outputs in float64 are more than a megabyte: below, one form serves all


@pytest.fixture(params=[True, False], ids=["amd", "other"])
def on_amd(request, monkeypatch):
    """Whether PyTorch's twin believes that it runs on a processor of AMD."""
    monkeypatch.setattr(in_torch, "_ON_AMD", request.param)
    return request.param


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 3), (2, 1), (5, 4)], ids=["one", "tokens", "rows", "many"]
)
@pytest.mark.parametrize("outputs", [600, 602, 601], ids=["eight-parts", "two-parts", "one-part"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_a_product_with_few_rows_is_that_of_linear(shape, outputs, biased, on_amd):
    made = torch.Generator().manual_seed(3)
    weight_ED, bias_E, x_BTD = (
        torch.randn(size, generator=made, dtype=torch.float64)
        for size in ((outputs, D), (outputs,), (*shape, D))
    )
    p = {"weight": weight_ED} | ({"bias": bias_E} if biased else {})

    y_BTE = linear(p, x_BTD)

    torch.testing.assert_close(y_BTE, F.linear(x_BTD, weight_ED, p.get("bias")))


@pytest.mark.parametrize(("rows", "form"), [(1, "aten::bmm"), (2, "aten::mm")])
def test_only_amd_has_a_form_of_its_own_for_few_rows(rows, form, on_amd):
    weight_ED, x_BTD = torch.ones(600, D, dtype=torch.float64), torch.ones(rows, 1, D).double()

    with torch.profiler.profile(acc_events=True) as seen:
        linear({"weight": weight_ED}, x_BTD)

    called = {event.key for event in seen.key_averages()}
    assert ("aten::linear" in called) == (not on_amd)
    assert (form in called) or not on_amd


@pytest.mark.parametrize("rows", [1, 2])
def test_gradients_pass_through_a_product_with_few_rows(rows, on_amd):
    made = torch.Generator().manual_seed(4)
    weight_ED = torch.randn(600, D, generator=made, dtype=torch.float64).requires_grad_()
    x_BTD = torch.randn(rows, 1, D, generator=made, dtype=torch.float64)

    (ours,) = torch.autograd.grad(linear({"weight": weight_ED}, x_BTD).square().sum(), weight_ED)
    (whole,) = torch.autograd.grad(F.linear(x_BTD, weight_ED).square().sum(), weight_ED)

    torch.testing.assert_close(ours, whole)


@pytest.mark.parametrize(("width", "parts"), [(224, 4), (226, 2), (225, 1)])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_one_row_times_a_large_matrix_is_a_sum_over_parts_of_it_in_jax(width, parts, biased):
    text = compare_in_jax((1, 1, width), 600, biased=biased)

    assert (f"f64[{parts},{width // parts},600]" in text) == (parts > 1)


@pytest.mark.parametrize(
    ("shape", "outputs"), [((1, 2), 600), ((3, 1), 600), ((1, 1), 500)], ids=["T", "B", "small"]
)
def test_other_products_stay_whole_in_jax(shape, outputs):
    assert f"f64[4,56,{outputs}]" not in compare_in_jax((*shape, 224), outputs, biased=False)


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (8, 1), (5, 4)], ids=str)
@pytest.mark.parametrize(("outputs", "parts"), [(600, 4), (602, 2), (601, 1)])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_a_turned_product_has_the_matrix_on_the_left_of_few_rows_in_jax(
    shape, outputs, parts, biased
):
    made = np.random.default_rng(6)
    weight_ED, x_BTD = made.normal(size=(outputs, 224)), made.normal(size=(*shape, 224))
    bias_E = made.normal(size=outputs) if biased else np.zeros(outputs)
    p = {"weight": weight_ED} | ({"bias": bias_E} if biased else {})

    compiled = jax.jit(in_jax.turned).lower(p, x_BTD).compile()

    np.testing.assert_allclose(compiled(p, x_BTD), x_BTD @ weight_ED.T + bias_E, 1e-10, 1e-10)
    rows = shape[0] * shape[1]
    on_left = f"f64[{parts},{outputs // parts},{rows}]" if parts > 1 else f"f64[{outputs},{rows}]"
    assert (on_left in (compiled.as_text() or "")) == (1 < rows <= 16)


def compare_in_jax(shape, outputs, *, biased) -> str:
    """Compare a product with numpy's and return the compiled program."""
    made = np.random.default_rng(5)
    p = {"weight": made.normal(size=(shape[-1], outputs))}
    bias_E = made.normal(size=outputs) if biased else np.zeros(outputs)
    p |= {"bias": bias_E} if biased else {}
    x_BTD = made.normal(size=shape)

    compiled = jax.jit(in_jax.linear).lower(p, x_BTD).compile()

    np.testing.assert_allclose(compiled(p, x_BTD), x_BTD @ p["weight"] + bias_E, 1e-10, 1e-10)
    return compiled.as_text() or ""
