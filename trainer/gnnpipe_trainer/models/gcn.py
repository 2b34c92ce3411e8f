"""Graph convolutional network (Kipf and Welling, 2017)."""

from __future__ import annotations

from torch import Tensor

from gnnpipe_trainer.models.block import Block, FirstTensor, Model, RawFeatures, State
from gnnpipe_trainer.models.by_hand import by_hand
from gnnpipe_trainer.models.layers import Between, Norm, conv_widths
from gnnpipe_trainer.models.linear import Linear, glorot_linear


class GCNBlock(Block):
    """h' = dropout(relu(norm(A h W + b))), A = D^-1/2 (adjacency + I) D^-1/2.

    (A h) W and A (h W) are the same; the narrower of h and h W is what is gathered. The first block always
    gathers the features: they never change, so A x is computed once for the whole training.
    """

    edge_weights = "sym"

    def __init__(self, inputs: int, outputs: int, between: Between, first: bool) -> None:
        multiply_first = outputs < inputs and not first
        super().__init__(outputs if multiply_first else inputs, (outputs,))
        self.multiply_first = multiply_first
        self.linear = glorot_linear(inputs, outputs)
        self.between = between
        self.gradient_stops_at_zeros = not between.last
        self.by_hand = by_hand(between, self.linear, multiply_first)

    @property
    def sends_state(self) -> bool:
        return not self.multiply_first

    @property
    def sent_by(self) -> Linear | None:
        return self.linear if self.multiply_first else None

    def message(self, state: State) -> Tensor:
        return self.linear.without_bias(state[0]) if self.multiply_first else state[0]

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        if self.multiply_first:
            return (self.between(gathered + self.linear.bias),)
        return (self.between.of(self.linear, gathered),)


def gcn(
    features: int, classes: int, hidden: int, layers: int, dropout: float, *, norm: Norm = "none"
) -> Model:
    """`layers` convolutions with ReLU and dropout between them. norm: none, or layer (helps deep ones)."""
    blocks = [
        GCNBlock(inputs, outputs, Between(outputs, norm, dropout, last=i == layers - 1), first=i == 0)
        for i, (inputs, outputs) in enumerate(conv_widths(features, hidden, classes, layers))
    ]
    return Model(RawFeatures(), blocks, FirstTensor(), constant_first_message=True)
