"""GraphSAGE (Hamilton et al., 2017) with mean aggregation and a root weight."""

from __future__ import annotations

from torch import Tensor

from gnnpipe_trainer.models.block import Block, FirstTensor, Model, RawFeatures, State
from gnnpipe_trainer.models.by_hand import by_hand
from gnnpipe_trainer.models.layers import Between, Norm, conv_widths
from gnnpipe_trainer.models.linear import Linear


class SAGEBlock(Block):
    """h' = dropout(relu(norm(mean(h_j) W_n + b + h W_r))) over in-neighbours j.

    The narrower of h and h W_n is what is gathered. The first block always gathers the features: they never
    change, so their means are computed once for the whole training.
    """

    edge_weights = "mean"
    bypass = True

    def __init__(self, inputs: int, outputs: int, between: Between, first: bool) -> None:
        multiply_first = outputs < inputs and not first
        super().__init__(outputs if multiply_first else inputs, (outputs,))
        self.multiply_first = multiply_first
        self.neighbours = Linear(inputs, outputs)
        self.root = Linear(inputs, outputs, bias=False)
        self.between = between
        self.gradient_stops_at_zeros = not between.last
        self.by_hand = by_hand(between, self.neighbours, multiply_first, self.root)

    @property
    def sends_state(self) -> bool:
        return not self.multiply_first

    @property
    def sent_by(self) -> Linear | None:
        return self.neighbours if self.multiply_first else None

    def message(self, state: State) -> Tensor:
        return self.neighbours.without_bias(state[0]) if self.multiply_first else state[0]

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        neighbours = gathered + self.neighbours.bias if self.multiply_first else self.neighbours(gathered)
        return (self.between(neighbours.add_(self.root(state[0]))),)


def sage(
    features: int, classes: int, hidden: int, layers: int, dropout: float, *, norm: Norm = "none"
) -> Model:
    """`layers` convolutions with ReLU and dropout between them. norm: none, or layer (helps deep ones)."""
    blocks = [
        SAGEBlock(inputs, outputs, Between(outputs, norm, dropout, last=i == layers - 1), first=i == 0)
        for i, (inputs, outputs) in enumerate(conv_widths(features, hidden, classes, layers))
    ]
    return Model(RawFeatures(), blocks, FirstTensor(), constant_first_message=True)
