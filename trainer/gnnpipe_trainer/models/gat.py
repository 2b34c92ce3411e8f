"""Graph attention network (Velickovic et al., 2018)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from gnnpipe_trainer.models.block import BadModel, ConvBlock, FirstTensor, Model, RawFeatures, State
from gnnpipe_trainer.models.layers import Between, Norm, conv_widths
from gnnpipe_trainer.models.linear import glorot_linear


class GATBlock(ConvBlock):
    """h' = dropout(relu(norm(sum_j a_ij h_j W + b))), a_i = softmax_j(leaky_relu(u h_j W + v h_i W)).

    j runs over in-neighbours and i itself, for each head; heads are concatenated or averaged. Neighbours read
    h W, not h: so a vertex is multiplied with W once, not once more in every chunk that has it as halo.
    """

    def __init__(
        self, inputs: int, outputs: int, between: Between, heads: int, concat: bool, dropout: float
    ) -> None:
        from torch_geometric.nn import GATConv  # takes seconds, and no other model needs it

        width = outputs // heads if concat else outputs
        conv = GATConv(inputs, width, heads=heads, concat=concat, dropout=dropout)
        conv.lin = nn.Identity()  # message does its work
        super().__init__(conv, heads * width, (outputs,))
        self.linear = glorot_linear(inputs, heads * width, bias=False)
        self.between = between
        self.gradient_stops_at_zeros = not between.last

    def message(self, state: State) -> Tensor:
        message: Tensor = self.linear(state[0])
        return message

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        return (self.between(gathered),)


def gat(
    features: int,
    classes: int,
    hidden: int,
    layers: int,
    dropout: float,
    *,
    norm: Norm = "none",
    heads: Annotated[int, Field(ge=1)] = 1,
    concat: bool = True,
) -> Model:
    """`layers` convolutions with ReLU and dropout between them, and dropout of attention.

    norm: none, or layer; heads: attention heads; concat: each head gives hidden / heads columns, otherwise
    each gives `hidden` and they are averaged. The heads of the last layer are always averaged.
    """
    if concat and hidden % heads:
        raise BadModel(
            f"spec.model.options.heads: {heads} heads cannot share {hidden} hidden columns evenly; "
            "change spec.model.hidden or heads, or set concat: false"
        )
    blocks = []
    for i, (inputs, outputs) in enumerate(conv_widths(features, hidden, classes, layers)):
        last = i == layers - 1
        between = Between(outputs, norm, dropout, last)
        blocks.append(GATBlock(inputs, outputs, between, heads, concat and not last, dropout))
    return Model(RawFeatures(), blocks, FirstTensor())
