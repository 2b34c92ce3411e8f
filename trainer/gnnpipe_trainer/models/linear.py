"""A linear layer that can put off its weight gradient.

The stage before waits for the input gradient only. Weight gradients (W) are needed at the end of the epoch,
so a stage may compute them while it would otherwise wait, as zero-bubble pipelines do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnpipe_trainer.models.dense import product, product_into, weight_gradient


class WeightGradientQueue:
    """Weight-gradient work in the order in which backward met it."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._work)

    def push(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def run(self, limit: int | None = None) -> int:
        """Do the oldest `limit` pieces (all, if None); returns how many were done."""
        count = len(self._work) if limit is None else min(limit, len(self._work))
        with torch.no_grad():
            for _ in range(count):
                self._work.popleft()()
        return count


# A plain global, not a ContextVar: on GPUs autograd runs backward in threads of its own.
_open_queue: WeightGradientQueue | None = None


@contextmanager
def defer_weight_gradients(queue: WeightGradientQueue) -> Iterator[WeightGradientQueue]:
    """Backward calls inside push weight-gradient work to `queue` instead of doing it.

    Use with `backward`, which adds to `.grad`; `torch.autograd.grad` would find no weight gradient to return.
    """
    global _open_queue
    outer, _open_queue = _open_queue, queue
    try:
        yield queue
    finally:
        _open_queue = outer


def want_gradient_in(x: Tensor, place: Tensor) -> None:
    """Backward of the first Linear that x feeds writes x's gradient there, and saves whoever wants it there a copy.

    A wish: it is not fulfilled where x feeds something else as well, or something between it and the Linear.
    """
    x.gradient_place = place  # type: ignore[attr-defined]


class Linear(nn.Linear):
    """y = x W^T + b for x [n, in_features]; weight [out, in] and bias [out] as in torch.nn.Linear."""

    def forward(self, input: Tensor) -> Tensor:
        return _times(input, self.weight, self.bias)

    def relu(self, input: Tensor) -> Tensor:
        """relu(x W^T + b) in one pass."""
        return _times(input, self.weight, self.bias, relu=True)

    def without_bias(self, input: Tensor) -> Tensor:
        """x W^T, for models that aggregate before they add the bias."""
        return _times(input, self.weight, None)

    def blended_relu(self, input: Tensor, share: float) -> Tensor:
        """relu((1 - share) x + share x W^T) for a square W, in one matrix product; the bias is left out."""
        return _times(input, self.weight, None, share, relu=True)


def glorot_linear(inputs: int, outputs: int, bias: bool = True) -> Linear:
    """A linear layer that starts as GCNConv's: Glorot uniform weight, zero bias."""
    linear = Linear(inputs, outputs, bias=bias)
    # Bit for bit as torch-geometric's `glorot`, whose import takes each rank seconds.
    bound = math.sqrt(6.0 / (inputs + outputs))
    nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def _times(x: Tensor, weight: Tensor, bias: Tensor | None, share: float = 1.0, relu: bool = False) -> Tensor:
    if x.dim() == 2 and torch.is_grad_enabled():
        y: Tensor = _SplitLinear.apply(x, weight, bias, share, relu)  # type: ignore[no-untyped-call]
        return y
    return product(x, _matrix(weight, share), bias, relu)


def _matrix(weight: Tensor, share: float) -> Tensor:
    """What a product with x blends x and x W^T."""
    if share == 1:
        return weight
    return torch.eye(len(weight), dtype=weight.dtype, device=weight.device).lerp_(weight, share)


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, share: float, relu: bool) -> Tensor:
        # Parameters are kept as they are, not saved: the put-off work adds to their .grad.
        ctx.weight, ctx.bias, ctx.share = weight, bias, share
        ctx.place = vars(x).pop("gradient_place", None)  # of the first only: a second would write over it
        y = product(x, _matrix(weight, share), bias, relu)
        ctx.save_for_backward(x, weight, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, y = ctx.saved_tensors
        need_x, need_weight, need_bias, _, _ = ctx.needs_input_grad
        if y is not None:
            dy = torch.ops.aten.threshold_backward(dy, y, 0)
        dx = _input_gradient(dy, _matrix(weight, ctx.share), x.dtype, ctx.place) if need_x else None
        if _open_queue is None or not (need_weight or need_bias):
            dw = _weight_gradient(dy, x, ctx.share) if need_weight else None
            return dx, dw, dy.sum(0) if need_bias else None, None, None
        wanted = ctx.weight if need_weight else None, ctx.bias if need_bias else None
        _open_queue.push(_put_off(dy, x, *wanted, ctx.share))
        return dx, None, None, None, None


def _input_gradient(dy: Tensor, matrix: Tensor, dtype: torch.dtype, place: Tensor | None) -> Tensor:
    """Under autocast dy has a lower precision than x and weight; elsewhere the casts do nothing."""
    if place is not None and place.dtype == dy.dtype == matrix.dtype:
        return product_into(
            place[:], dy, matrix.t()
        )  # a view of its own: autograd keeps what nobody else holds
    return product(dy, matrix.to(dy.dtype).t()).to(dtype)


def _weight_gradient(dy: Tensor, x: Tensor, share: float) -> Tensor:
    gradient = weight_gradient(dy, x.to(dy.dtype))
    return gradient if share == 1 else gradient.mul_(share)


def _put_off(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, share: float
) -> Callable[[], None]:
    versions = dy._version, x._version

    def add_gradients() -> None:
        if (dy._version, x._version) != versions:
            raise RuntimeError(
                "a tensor that a put-off weight gradient needs was overwritten: run the queue before that"
            )
        if weight is not None:
            _accumulate(weight, _weight_gradient(dy, x, share))
        if bias is not None:
            _accumulate(bias, dy.sum(0))

    return add_gradients


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    gradient = gradient.to(parameter.dtype)
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
