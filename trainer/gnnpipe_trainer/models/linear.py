"""A linear layer that can put off its weight gradient.

The stage before waits for the input gradient only. Weight gradients (W) are needed at the end of the epoch,
so a stage may compute them while it would otherwise wait, as zero-bubble pipelines do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnnpipe_trainer.models.dense import gradients, product


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


Sink = WeightGradientQueue | Literal["at once"]

# Where weight gradients go; None: autograd takes them. A plain global, not a ContextVar: on GPUs autograd runs backward
# in threads of its own.
_sink: Sink | None = None


@contextmanager
def defer_weight_gradients(queue: WeightGradientQueue) -> Iterator[WeightGradientQueue]:
    """Backward calls inside push weight-gradient work to `queue` instead of doing it.

    Use with `backward`, which adds to `.grad`; `torch.autograd.grad` would find no weight gradient to return.
    """
    with _weight_gradients_to(queue):
        yield queue


def add_weight_gradients() -> AbstractContextManager[None]:
    """Backward calls inside add weight gradients to `.grad` in the pass that makes them. For `backward` only, too."""
    return _weight_gradients_to("at once")


@contextmanager
def _weight_gradients_to(sink: Sink) -> Iterator[None]:
    global _sink
    outer, _sink = _sink, sink
    try:
        yield
    finally:
        _sink = outer


def want_gradient_in(x: Tensor, place: Tensor) -> None:
    """Backward of the first Linear that x feeds writes x's gradient there, and saves whoever wants it there a copy.

    A wish: it is not fulfilled where x feeds something else as well, or something between it and the Linear.
    """
    x.gradient_place = place  # type: ignore[attr-defined]


class _Kept:
    """A result that its own backward needs, wherever it lies by then."""

    __slots__ = ("tensor", "version")

    def lie_in(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version

    def take(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError("the result of a ReLU was overwritten, and its backward needs it")
        return self.tensor


def lie_in(x: Tensor, place: Tensor) -> None:
    """x has been copied to `place`, which nobody writes to before x's backward: x and what it keeps of itself lie
    there from now on, and x's own memory is given back."""
    x.data = place.detach()  # x goes on counting its own changes, not those of the rows beside it
    kept: _Kept | None = vars(x).pop("kept", None)
    if kept is not None:
        kept.lie_in(x.detach())


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
        kept = _Kept() if relu else None
        y: Tensor = _SplitLinear.apply(x, weight, bias, share, kept)  # type: ignore[no-untyped-call]
        if kept is not None:
            y.kept = kept  # type: ignore[attr-defined]
        return y
    return product(x, _matrix(weight, share), bias, relu)


def _matrix(weight: Tensor, share: float) -> Tensor:
    """What a product with x blends x and x W^T."""
    if share == 1:
        return weight
    return torch.eye(len(weight), dtype=weight.dtype, device=weight.device).lerp_(weight, share)


class _SplitLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, share: float, kept: _Kept | None
    ) -> Tensor:
        """`kept`: what a ReLU keeps of its result; None for no ReLU."""
        # Parameters are kept as they are, not saved: the put-off work adds to their .grad.
        ctx.weight, ctx.bias, ctx.share, ctx.kept = weight, bias, share, kept
        ctx.place = vars(x).pop("gradient_place", None)  # of the first only: a second would write over it
        y = product(x, _matrix(weight, share), bias, relu=kept is not None)
        if kept is not None:
            kept.lie_in(y.detach())
        ctx.save_for_backward(x, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        need_x, need_weight, need_bias, _, _ = ctx.needs_input_grad
        y = None if ctx.kept is None else ctx.kept.take()
        share = ctx.share
        matrix, dx = (_matrix(weight, share), _place(ctx.place, x)) if need_x else (None, None)
        if _sink is None:
            dw = torch.zeros_like(weight) if need_weight else None
            db = torch.zeros_like(ctx.bias) if need_bias else None
            gradients(dy, y, x, matrix, dx, dw, db, share=share)
            return dx, dw, db, None, None
        wanted = ctx.weight if need_weight else None, ctx.bias if need_bias else None
        _collect(dy, y, x, matrix, dx, wanted, share=share)
        return dx, None, None, None, None


Wanted = tuple[Tensor | None, Tensor | None]  # weight and bias


def backward_by_hand(
    linear: nn.Linear,
    dy: Tensor,
    y: Tensor | None,
    x: Tensor,
    dx: Tensor | None,
    scale: float = 1.0,
    with_bias: bool = True,
) -> None:
    """Backward of x W^T + b outside autograd, or of what ReLU and dropout made of it, y, whose scale is that of what it
    keeps. Writes dx if it is given; weight gradients go where those of others go."""
    weight, bias = linear.weight, linear.bias if with_bias else None
    wanted = (
        weight if weight.requires_grad else None,
        bias if bias is not None and bias.requires_grad else None,
    )
    _collect(dy, y, x, None if dx is None else weight, dx, wanted, scale)


def add_bias_gradient(linear: nn.Linear, dy: Tensor) -> None:
    """Of + b alone; at once, it is next to nothing."""
    if linear.bias.requires_grad:
        total = _gradient_of(linear.bias)
        assert total is not None
        total.add_(dy.sum(0))


def _collect(
    dy: Tensor,
    y: Tensor | None,
    x: Tensor,
    matrix: Tensor | None,
    dx: Tensor | None,
    wanted: Wanted,
    scale: float = 1.0,
    share: float = 1.0,
) -> None:
    """Weight gradients are put off if a queue is open, and added to .grad at once otherwise."""
    if isinstance(_sink, WeightGradientQueue):
        gradients(dy, y, x, matrix, dx, scale=scale)
        if wanted != (None, None):
            _sink.push(_put_off(dy, y, x, wanted, scale, share))
    else:
        gradients(dy, y, x, matrix, dx, _gradient_of(wanted[0]), _gradient_of(wanted[1]), scale, share)


def _place(wish: Tensor | None, x: Tensor) -> Tensor:
    if wish is not None and wish.dtype is x.dtype:
        return wish[:]  # a view of its own: autograd keeps what nobody else holds
    return torch.empty_like(x)


def _gradient_of(parameter: Tensor | None) -> Tensor | None:
    """Where a parameter's gradient is added up."""
    if parameter is not None and parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return None if parameter is None else parameter.grad


def _put_off(
    dy: Tensor, y: Tensor | None, x: Tensor, wanted: Wanted, scale: float, share: float
) -> Callable[[], None]:
    versions = dy._version, x._version

    def add_gradients() -> None:
        if (dy._version, x._version) != versions:
            raise RuntimeError(
                "a tensor that a put-off weight gradient needs was overwritten: run the queue before that"
            )
        gradients(dy, y, x, None, None, _gradient_of(wanted[0]), _gradient_of(wanted[1]), scale, share)

    return add_gradients
