"""GCNII (Chen et al., 2020): graph convolutions that stay trainable when deep."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from gnnpipe_trainer.models.block import Block, Model, State
from gnnpipe_trainer.models.dropout import dropout
from gnnpipe_trainer.models.linear import Linear, glorot_linear


class GCNIIEncoder(nn.Module):
    """h = h0 = relu(dropout(x) W + b)."""

    def __init__(self, features: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.linear = Linear(features, hidden)
        self.dropout = dropout

    def forward(self, features: Tensor) -> State:
        h = self.linear.relu(dropout(features, self.dropout, self.training))
        return (h, h)


class GCNIIBlock(Block):
    """h' = relu((1 - theta_l) s + theta_l s W), s = (1 - alpha) A dropout(h) + alpha h0.

    A = D^-1/2 (adjacency + I) D^-1/2 and theta_l = log(theta / l + 1) in layer l = 1, 2, ...
    h0, the encoder's output, travels in the state so that every stage has it; the last block drops it.
    """

    edge_weights = "sym"
    gradient_stops_at_zeros = (
        True  # h and h0 both come out of a ReLU; all that flows back to h0 passes that one
    )
    bypass = True
    # History whose mean lags behind makes it late on some graphs; no other model was seen to gain from the correction,
    # and gcn with eight layers is harmed by it (docs/staleness.md).
    follows_mean = True

    def __init__(self, hidden: int, dropout: float, alpha: float, theta_l: float, last: bool) -> None:
        super().__init__(hidden, (hidden,) if last else (hidden, hidden))
        self.linear = glorot_linear(hidden, hidden, bias=False)
        self.dropout = dropout
        self.alpha = alpha
        self.theta_l = theta_l
        self.last = last

    def message(self, state: State) -> Tensor:
        return dropout(state[0], self.dropout, self.training)

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        h0 = state[1]
        s = torch.lerp(gathered, h0, self.alpha)
        h = self.linear.blended_relu(s, self.theta_l)
        return (h,) if self.last else (h, h0)


class GCNIIDecoder(nn.Module):
    """logits = dropout(h) W + b."""

    def __init__(self, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.linear = Linear(hidden, classes)
        self.dropout = dropout

    def forward(self, state: State) -> Tensor:
        logits: Tensor = self.linear(dropout(state[0], self.dropout, self.training))
        return logits


def gcnii(
    features: int,
    classes: int,
    hidden: int,
    layers: int,
    dropout: float,
    *,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.1,
    theta: Annotated[float, Field(ge=0)] = 0.5,
) -> Model:
    """A dense layer, `layers` GCNII convolutions, a dense layer.

    alpha: the share of the initial residual h0; theta: how strongly W counts, less in every further layer.
    """
    blocks = [
        GCNIIBlock(hidden, dropout, alpha, math.log(theta / number + 1), last=number == layers)
        for number in range(1, layers + 1)
    ]
    return Model(GCNIIEncoder(features, hidden, dropout), blocks, GCNIIDecoder(hidden, classes, dropout))
