"""Updates whose backward is written out, so that autograd need not be asked.

A pipeline takes chunks through layers one by one. What autograd took to find out, for each of these thousands of small
steps, what is always the same was a tenth of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from gnnpipe_trainer.models.dense import add_product, product
from gnnpipe_trainer.models.dropout import dropout, kept_scale
from gnnpipe_trainer.models.layers import Between
from gnnpipe_trainer.models.linear import backward_by_hand


@dataclass(frozen=True)
class ReluOfLinear:
    """h = dropout(relu(gathered W^T + b + own V^T)), without V too.

    Shapes: gathered [n, in], own [n, width], h [n, out].
    """

    between: Between
    linear: nn.Linear  # W and b
    root: nn.Linear | None = None  # V

    def forward(self, gathered: Tensor, own: Tensor) -> Tensor:
        """Outside autograd."""
        if self.root is None:
            h = product(gathered, self.linear.weight, self.linear.bias, relu=True)
        else:
            h = product(gathered, self.linear.weight, self.linear.bias)
            add_product(h, own, self.root.weight, relu=True)
        return dropout(h, self.between.dropout, self.between.training)

    def backward(
        self, dh: Tensor, h: Tensor, gathered: Tensor, own: Tensor, d_gathered: Tensor | None, wants_own: bool
    ) -> Tensor | None:
        """Writes d_gathered if it is given; returns the gradient of `own` if it is wanted and there is one.

        Weight gradients are added to `.grad`, or put off (models/linear.py).
        """
        scale = kept_scale(h, self.between.dropout) if self.between.training else 1.0
        backward_by_hand(self.linear, dh, h, gathered, d_gathered, scale)
        if self.root is None:
            return None
        d_own = own.new_empty(own.shape) if wants_own else None
        backward_by_hand(self.root, dh, h, own, d_own, scale)
        return d_own


def relu_of_linear(between: Between, linear: nn.Linear, root: nn.Linear | None = None) -> ReluOfLinear | None:
    """What comes between two convolutions by hand: None after the last, or where there is a norm."""
    return None if between.last or between.norm is not None else ReluOfLinear(between, linear, root)
