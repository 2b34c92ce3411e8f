"""A put-off weight gradient is the same weight gradient, later."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnpipe_api.spec_model import ModelSpec
from gnnpipe_trainer.models import Linear, WeightGradientQueue, build_model, defer_weight_gradients
from gnnpipe_trainer.models.build import BUILT_IN
from gnnpipe_trainer.models.linear import add_weight_gradients, want_gradient_in
from gnnpipe_trainer.models.loss import loss_sum
from gnnpipe_trainer.models.reference import full_graph_forward

DTYPES = [torch.float32, torch.float64]


def two_layers(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Linear(6, 5), nn.ReLU(), Linear(5, 3, bias=False)).to(dtype)


def gradients(module: nn.Module) -> list[Tensor]:
    found = [parameter.grad for parameter in module.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("dtype", DTYPES)
def test_input_gradient_comes_at_once_and_weight_gradient_when_the_queue_runs(dtype: torch.dtype) -> None:
    module = two_layers(dtype)
    x = torch.randn(10, 6, dtype=dtype, requires_grad=True)
    with defer_weight_gradients(WeightGradientQueue()) as queue:
        module(x).square().sum().backward()
    assert x.grad is not None
    assert all(parameter.grad is None for parameter in module.parameters())
    assert len(queue) == 2
    assert queue.run() == 2
    assert len(queue) == 0
    assert len(gradients(module)) == 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_put_off_are_those_that_are_added_at_once_bit_for_bit(dtype: torch.dtype) -> None:
    at_once, put_off = two_layers(dtype), two_layers(dtype)
    queue = WeightGradientQueue()
    for seed in range(4):
        inputs = []
        for module in (at_once, put_off):
            torch.manual_seed(seed)
            inputs.append(torch.randn(10, 6, dtype=dtype, requires_grad=True))
            output = module(inputs[-1]).square().sum()
            if module is put_off:
                with defer_weight_gradients(queue):
                    output.backward()
            else:
                with add_weight_gradients():
                    output.backward()
        assert inputs[0].grad is not None
        assert inputs[1].grad is not None
        assert torch.equal(inputs[0].grad, inputs[1].grad)
    queue.run()
    for one, other in zip(gradients(at_once), gradients(put_off), strict=True):
        assert torch.equal(one, other)


def test_gradients_are_those_of_torch_linear() -> None:
    ours = two_layers(torch.float64)
    theirs = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(10, 6)
    for module in (ours, theirs):
        module(x).square().sum().backward()
    for one, other in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_the_derivative_is_right_by_finite_differences() -> None:
    linear = Linear(4, 3)
    x = torch.randn(5, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _weight, _bias: linear(x), (x, linear.weight, linear.bias))


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_built_in_model_trains_the_same_with_weight_gradients_put_off(kind: str, graph: Any) -> None:
    model = build_model(ModelSpec(kind=kind, layers=3, hidden=8, dropout=0.5), 7, 3)

    def run(queue: WeightGradientQueue | None) -> list[Tensor]:
        torch.manual_seed(3)
        model.zero_grad(set_to_none=True)
        loss = loss_sum(
            full_graph_forward(model, graph.features, graph.edge_index), graph.labels, graph.train
        )
        if queue is None:
            loss.backward()
        else:
            with defer_weight_gradients(queue):
                loss.backward()
            assert len(queue) == sum(isinstance(module, Linear) for module in model.modules())
            queue.run()
        return gradients(model)

    for one, other in zip(run(None), run(WeightGradientQueue()), strict=True):
        assert torch.equal(one, other)


def test_a_queue_can_be_run_piece_by_piece_in_the_order_of_backward() -> None:
    module = two_layers(torch.float64)
    with defer_weight_gradients(WeightGradientQueue()) as queue:
        module(torch.randn(10, 6)).sum().backward()
    assert queue.run(limit=1) == 1
    assert module[2].weight.grad is not None  # backward meets the last layer first
    assert module[0].weight.grad is None
    assert queue.run(limit=5) == 1


def test_queues_nest_and_close_after_an_error() -> None:
    module = two_layers(torch.float64)
    outer, inner = WeightGradientQueue(), WeightGradientQueue()

    def backward() -> None:
        module(torch.randn(10, 6)).sum().backward()

    with defer_weight_gradients(outer):
        with defer_weight_gradients(inner):
            backward()
        backward()
    with pytest.raises(ZeroDivisionError), defer_weight_gradients(outer):
        raise ZeroDivisionError
    backward()
    assert (len(outer), len(inner)) == (2, 2)


def test_overwriting_what_a_put_off_gradient_needs_is_an_error() -> None:
    linear = Linear(4, 3)
    buffer = torch.randn(10, 4)
    with defer_weight_gradients(WeightGradientQueue()) as queue:
        linear(buffer[2:5]).sum().backward()
    buffer.zero_()
    with pytest.raises(RuntimeError, match="overwritten"):
        queue.run()


def test_frozen_parameters_get_no_gradient_either_way() -> None:
    linear = Linear(4, 3)
    linear.weight.requires_grad_(False)
    with defer_weight_gradients(WeightGradientQueue()) as queue:
        linear(torch.randn(10, 4)).sum().backward()
    queue.run()
    assert linear.weight.grad is None
    assert linear.bias.grad is not None


def test_under_autocast_gradients_have_the_precision_of_the_parameters() -> None:
    linear = Linear(4, 3).float()
    x = torch.randn(10, 4, dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(x)
    assert y.dtype == torch.bfloat16
    with defer_weight_gradients(WeightGradientQueue()) as queue:
        y.float().sum().backward()
    queue.run()
    assert x.grad is not None
    assert linear.weight.grad is not None
    assert x.grad.dtype == linear.weight.grad.dtype == torch.float32
    torch.testing.assert_close(linear.weight.grad, x.sum(0).expand(3, 4).detach(), rtol=0.05, atol=0.05)


def test_without_bias_leaves_the_bias_out_of_value_and_gradient() -> None:
    linear = Linear(4, 3)
    x = torch.randn(10, 4)
    y = linear.without_bias(x)
    torch.testing.assert_close(y, x @ linear.weight.t())
    y.sum().backward()
    assert linear.bias.grad is None


@pytest.mark.parametrize("put_off", [False, True])
def test_a_blended_layer_is_relu_of_the_blend_of_input_and_output(put_off: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(5, 5, bias=False).double()
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    blend = torch.lerp(x, layer(x), 0.3).relu()
    expected = torch.autograd.grad(blend.square().sum(), [x, layer.weight])
    queue = WeightGradientQueue()
    with defer_weight_gradients(queue) if put_off else nullcontext():
        blended = layer.blended_relu(x, 0.3)
        torch.autograd.backward(blended.square().sum())
    assert len(queue) == (1 if put_off else 0)
    queue.run()
    torch.testing.assert_close(blended, blend)
    torch.testing.assert_close((x.grad, layer.weight.grad), expected)


@pytest.mark.parametrize("feeds", [1, 2])
def test_an_input_gradient_is_right_wherever_it_is_wanted(feeds: int) -> None:
    layers = [two_layers(torch.float64)[0] for _ in range(feeds)]
    x = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    wished, place = x.detach().requires_grad_(), torch.zeros(20, 6, dtype=torch.float64)
    want_gradient_in(wished, place[5:15])
    for given in (x, wished):
        sum((layer(given).square().sum() for layer in layers), torch.zeros(())).backward()
    assert x.grad is not None
    assert wished.grad is not None
    torch.testing.assert_close(wished.grad, x.grad)
    in_place = wished.grad.data_ptr() == place[5:15].data_ptr()
    assert in_place or feeds > 1, "it had to be copied although nothing stood in the way"
