"""Graph isomorphism network (Xu et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnnpipe_trainer.models.block import Block, FirstTensor, Model, RawFeatures, State
from gnnpipe_trainer.models.layers import Between, Norm, conv_widths
from gnnpipe_trainer.models.linear import Linear


class GINBlock(Block):
    """h' = dropout(relu(norm(relu(s W_1 + b_1) W_2 + b_2))), s = sum(h_j) + (1 + eps) h.

    The sum runs over in-neighbours j; that of the first block, of constant features, is computed once.
    """

    edge_weights = "sum"
    bypass = True

    def __init__(self, inputs: int, outputs: int, between: Between, eps: float, train_eps: bool) -> None:
        super().__init__(inputs, (outputs,))
        self.eps: Tensor
        if train_eps:
            self.eps = nn.Parameter(torch.tensor([eps]))
        else:
            self.register_buffer("eps", torch.tensor([eps]))
        self.inner = Linear(inputs, outputs)
        self.outer = Linear(outputs, outputs)
        self.between = between
        self.gradient_stops_at_zeros = not between.last

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        s = gathered + (1 + self.eps) * state[0]
        return (self.between.of(self.outer, self.inner.relu(s)),)


def gin(
    features: int,
    classes: int,
    hidden: int,
    layers: int,
    dropout: float,
    *,
    norm: Norm = "none",
    eps: float = 0.0,
    train_eps: bool = False,
) -> Model:
    """`layers` convolutions with ReLU and dropout between them.

    norm: none, or layer (sums grow with degree and depth, so deep ones need it); eps: the extra weight of the
    vertex itself, learned if train_eps.
    """
    blocks = [
        GINBlock(inputs, outputs, Between(outputs, norm, dropout, last=i == layers - 1), eps, train_eps)
        for i, (inputs, outputs) in enumerate(conv_widths(features, hidden, classes, layers))
    ]
    return Model(RawFeatures(), blocks, FirstTensor(), constant_first_message=True)
