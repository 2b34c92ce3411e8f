"""Dense products are what torch says they are, whichever kernel does them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnpipe_trainer.models import Linear
from gnnpipe_trainer.models.dense import (
    FEWEST_IMAGES,
    FEWEST_ROWS,
    IMAGE_ROWS,
    product,
    product_into,
    weight_gradient,
)
from gnnpipe_trainer.planning import work

ROWS = [1, FEWEST_ROWS - 1, FEWEST_ROWS, FEWEST_IMAGES * IMAGE_ROWS - 1, FEWEST_IMAGES * IMAGE_ROWS, 3757]
WIDTHS = [(64, 64), (33, 7), (1, 64), (64, 1)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float32)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
def test_products_in_fp32_are_those_of_float64_to_rounding(rows: int, inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight, bias, dy = drawn(rows, inputs), drawn(outputs, inputs), drawn(outputs), drawn(rows, outputs)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    for got, wanted in [
        (product(x, weight, bias), exact),
        (product(x, weight, bias, relu=True), exact.relu()),
        (product(x, weight), exact - bias.double()),
        (product(dy, weight.t()), dy.double() @ weight.double()),
        (product_into(torch.empty_like(x), dy, weight.t()), dy.double() @ weight.double()),
        (weight_gradient(dy, x), dy.double().t() @ x.double()),
    ]:
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5 * rows**0.5)


def test_a_gradient_that_is_one_number_for_all_rows_is_taken_as_well() -> None:
    """As from a sum: it lies in no memory of its own."""
    x, weight = drawn(3000, 8), drawn(5, 8)
    dy = drawn(1, 1).fill_(1).expand(3000, 5)
    torch.testing.assert_close(weight_gradient(dy, x), x.sum(0).expand(5, 8), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(product(dy, weight.t()), weight.sum(0).expand(3000, 8))


def test_rows_that_do_not_lie_side_by_side_are_taken_as_well() -> None:
    wide, weight, dy = drawn(3000, 16), drawn(5, 8), drawn(3000, 10)
    x, dy = wide[:, 8:], dy[:, ::2]
    torch.testing.assert_close(product(x, weight), x.clone() @ weight.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(weight_gradient(dy, x), dy.clone().t() @ x.clone(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("shape", [(500,), (2, 500, 500)])
def test_what_is_no_matrix_is_left_to_torch(shape: tuple[int, ...]) -> None:
    x, layer = drawn(*shape), Linear(500, 3).float()
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_the_same_product_is_the_same_bits_again() -> None:
    """Or a job that goes on would not end with the weights of one that was never stopped."""
    x, weight, dy = drawn(5000, 64), drawn(64, 64), drawn(5000, 64)
    for _ in range(5):
        assert torch.equal(product(x, weight), product(x.clone(), weight.clone()))
        assert torch.equal(weight_gradient(dy, x), weight_gradient(dy.clone(), x.clone()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_relu_in_the_same_pass_has_the_gradients_of_relu_afterwards(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = Linear(64, 48).to(dtype)
    x = torch.randn(2500, 64, dtype=dtype, requires_grad=True)
    values, gradients = [], []
    for y in (layer.relu(x), layer(x).relu()):
        values.append(y)
        gradients.append(torch.autograd.grad(y.square().sum(), [x, layer.weight, layer.bias]))
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-2)


def test_under_autocast_products_are_left_to_torch() -> None:
    x, layer = drawn(3000, 64), Linear(64, 64).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.relu(x).dtype == torch.bfloat16


def test_the_planner_knows_from_how_many_rows_on_products_are_quick() -> None:
    assert work.FEWEST_ROWS == FEWEST_ROWS
    assert work.FEWEST_ROWS_OF_WEIGHTS == FEWEST_IMAGES * IMAGE_ROWS
