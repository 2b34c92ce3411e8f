"""Updates whose backward is written out, so that autograd need not be asked.

A pipeline takes chunks through layers one by one. What autograd took to find out, for each of these thousands of small
steps, what is always the same was a tenth of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from gnnpipe_trainer.kernels import Entry
from gnnpipe_trainer.models.dense import add_product, product
from gnnpipe_trainer.models.dropout import dropout, kept_scale
from gnnpipe_trainer.models.layers import Between
from gnnpipe_trainer.models.linear import add_bias_gradient, backward_by_hand


@dataclass(frozen=True)
class Dense:
    """h = dropout(relu(gathered W^T + b + own V^T)), without V too; after the last convolution no ReLU, no dropout.

    Shapes: gathered [n, in], own [n, width], h [n, out].
    """

    between: Between
    linear: nn.Linear  # W and b
    root: nn.Linear | None = None  # V

    def forward(self, gathered: Tensor, own: Tensor, entry: Entry | None = None) -> Tensor:
        """Outside autograd. May push the result into history, if told how; then that is `entry.served`."""
        between, relu = self.between, not self.between.last
        if relu and between.training and between.dropout:
            entry = None  # what enters history has gone through dropout
        if self.root is None:
            h = product(gathered, self.linear.weight, self.linear.bias, relu, entry)
        else:
            h = product(gathered, self.linear.weight, self.linear.bias)
            h = add_product(h, own, self.root.weight, relu, entry)
        return dropout(h, between.dropout, between.training) if relu else h

    def backward(
        self, dh: Tensor, h: Tensor, gathered: Tensor, own: Tensor, d_gathered: Tensor | None, wants_own: bool
    ) -> Tensor | None:
        """Writes d_gathered if it is given; returns the gradient of `own` if it is wanted and there is one.

        Weight gradients are added to `.grad`, or put off (models/linear.py).
        """
        result = None if self.between.last else h
        scale = kept_scale(h, self.between.dropout) if self.between.training and result is not None else 1.0
        backward_by_hand(self.linear, dh, result, gathered, d_gathered, scale)
        return _root_gradient(self.root, dh, result, own, scale, wants_own)


@dataclass(frozen=True)
class AfterSum:
    """h = gathered + b + own V^T, without V too: the last convolution, where W was multiplied with before the sum."""

    linear: nn.Linear  # b
    root: nn.Linear | None = None  # V

    def forward(self, gathered: Tensor, own: Tensor, entry: Entry | None = None) -> Tensor:
        """In the place of `gathered`, which was made for nobody else."""
        h = gathered.add_(self.linear.bias)
        return h if self.root is None else add_product(h, own, self.root.weight)

    def backward(
        self, dh: Tensor, h: Tensor, gathered: Tensor, own: Tensor, d_gathered: Tensor | None, wants_own: bool
    ) -> Tensor | None:
        if d_gathered is not None:
            d_gathered.copy_(dh)
        add_bias_gradient(self.linear, dh)
        return _root_gradient(self.root, dh, None, own, 1.0, wants_own)


def _root_gradient(
    root: nn.Linear | None, dh: Tensor, h: Tensor | None, own: Tensor, scale: float, wants_own: bool
) -> Tensor | None:
    if root is None:
        return None
    d_own = own.new_empty(own.shape) if wants_own else None
    backward_by_hand(root, dh, h, own, d_own, scale)
    return d_own


def by_hand(
    between: Between, linear: nn.Linear, multiply_first: bool, root: nn.Linear | None = None
) -> Dense | AfterSum | None:
    """What follows a sum, by hand; None where there is a norm. `multiply_first`: W was multiplied with before it."""
    if between.norm is not None:
        return None
    if not multiply_first:
        return Dense(between, linear, root)
    return AfterSum(linear, root) if between.last else None
