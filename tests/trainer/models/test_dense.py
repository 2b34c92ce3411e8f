"""Dense layers are what torch says they are, whichever loops compute them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnpipe_trainer import kernels
from gnnpipe_trainer.models import Linear
from gnnpipe_trainer.models.dense import add_product, gradients, product

ROWS = [0, 1, 5, 6, 96, 97, 3757]  # tiles are 6 rows high, blocks 96
WIDTHS = [(64, 64), (33, 7), (1, 64), (64, 1), (100, 49), (16, 80)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float32)


def filled(value: float, *shape: int) -> Tensor:
    return torch.full(shape, value, dtype=torch.float32)


def test_this_machine_has_a_compiler_so_the_loops_are_here() -> None:
    """Everything below would pass without them."""
    assert kernels.fits(drawn(2, 2))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_products_in_fp32_are_those_of_float64_to_rounding(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight, bias, dy = drawn(rows, inputs), drawn(outputs, inputs), drawn(outputs), drawn(rows, outputs)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    there = drawn(rows, outputs)
    for got, wanted in [
        (product(x, weight, bias), exact),
        (product(x, weight, bias, relu=True), exact.relu()),
        (product(x, weight), exact - bias.double()),
        (product(dy, weight.t()), dy.double() @ weight.double()),
        (add_product(there.clone(), x, weight), there.double() + exact - bias.double()),
        (add_product(there.clone(), x, weight, relu=True), (there.double() + exact - bias.double()).relu()),
    ]:
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
@pytest.mark.parametrize("scale", [None, 1.0, 2.0], ids=["no relu", "relu", "relu and dropout"])
def test_gradients_in_fp32_are_those_of_float64_to_rounding(
    rows: int, inputs: int, outputs: int, scale: float | None
) -> None:
    torch.manual_seed(0)
    x, weight, dy = drawn(rows, inputs), drawn(outputs, inputs), drawn(rows, outputs)
    y = None if scale is None else drawn(rows, outputs).relu()
    flows = dy.double() if y is None or scale is None else torch.where(y > 0, scale * dy.double(), 0)
    dx, dw, db = torch.empty_like(x), filled(1, outputs, inputs), filled(1, outputs)
    gradients(dy, y, x, weight, dx, dw, db, scale or 1.0, share=0.5)
    close = {"rtol": 1e-4, "atol": 1e-5 * max(rows, outputs) ** 0.5 * 10}
    torch.testing.assert_close(dx.double(), flows @ weight.double(), **close)
    torch.testing.assert_close(dw.double(), 1 + 0.5 * flows.t() @ x.double(), **close)
    torch.testing.assert_close(db.double(), 1 + flows.sum(0), **close)
    for parts in [(weight, torch.empty_like(x), None, None), (None, None, filled(1, outputs, inputs), None)]:
        gradients(dy, y, x, *parts, scale=scale or 1.0, share=0.5)
        for got, wanted in zip(parts[1:3], (dx, dw), strict=True):
            assert got is None or torch.equal(got, wanted)


def test_what_is_no_number_is_seen_through_relu() -> None:
    """Or training that has diverged would go on with zeros."""
    x = filled(float("nan"), 7, 3)
    assert product(x, drawn(5, 3), drawn(5), relu=True).isnan().all()


def test_a_gradient_that_is_one_number_for_all_rows_is_taken_as_well() -> None:
    """As from a sum: it lies in no memory of its own."""
    x, weight = drawn(3000, 8), drawn(5, 8)
    dy = drawn(1, 1).fill_(1).expand(3000, 5)
    dx, dw = torch.empty_like(x), filled(0, 5, 8)
    gradients(dy, None, x, weight, dx, dw)
    torch.testing.assert_close(dw, x.sum(0).expand(5, 8), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(dx, weight.sum(0).expand(3000, 8))


def test_rows_that_do_not_lie_side_by_side_are_taken_as_well() -> None:
    wide, weight, dy = drawn(3000, 16), drawn(5, 8), drawn(3000, 10)
    x, dy, dw = wide[:, 8:], dy[:, ::2], filled(0, 5, 8)
    torch.testing.assert_close(product(x, weight), x.clone() @ weight.t(), rtol=1e-4, atol=1e-4)
    gradients(dy, None, x, dw=dw)
    torch.testing.assert_close(dw, dy.clone().t() @ x.clone(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("shape", [(500,), (2, 500, 500)])
def test_what_is_no_matrix_is_left_to_torch(shape: tuple[int, ...]) -> None:
    x, layer = drawn(*shape), Linear(500, 3).float()
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_the_same_product_is_the_same_bits_again() -> None:
    """Or a job that goes on would not end with the weights of one that was never stopped."""
    x, weight, dy = drawn(5000, 64), drawn(64, 64), drawn(5000, 64)
    sums = [filled(0, 64, 64) for _ in range(5)]
    for dw in sums:
        assert torch.equal(product(x, weight), product(x.clone(), weight.clone()))
        gradients(dy.clone(), None, x.clone(), dw=dw)
        assert torch.equal(dw, sums[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_in_the_same_pass_has_the_gradients_of_relu_afterwards(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = Linear(64, 48).to(dtype)
    x = torch.randn(2500, 64, dtype=dtype, requires_grad=True)
    values, found = [], []
    for y in (layer.relu(x), layer(x).relu()):
        values.append(y)
        found.append(torch.autograd.grad(y.square().sum(), [x, layer.weight, layer.bias]))
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-2)


def test_under_autocast_products_are_left_to_torch() -> None:
    x, layer = drawn(3000, 64), Linear(64, 64).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.relu(x).dtype == torch.bfloat16
