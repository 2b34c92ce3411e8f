"""ResGCN+ (Li et al., 2020, DeeperGCN), the residual model of the GNNPipe paper."""

from __future__ import annotations

from torch import Tensor, nn

from gnnpipe_trainer.models.block import Block, Model, State
from gnnpipe_trainer.models.dropout import dropout
from gnnpipe_trainer.models.linear import Linear


class PreActivation(nn.Module):
    """dropout(relu(layer_norm(h)))."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.dropout = dropout

    def forward(self, h: Tensor) -> Tensor:
        return dropout(self.norm(h).relu_(), self.dropout, self.training)


class ResGCNEncoder(nn.Module):
    """h = x W + b."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = Linear(features, hidden)

    def forward(self, features: Tensor) -> State:
        return (self.linear(features),)


class ResGCNBlock(Block):
    """h' = h + mean(m_j) W_n + b + m W_r, m = dropout(relu(layer_norm(h))), over in-neighbours j.

    The first block is the bare convolution, without norm and shortcut: h' = mean(h_j) W_n + b + h W_r.
    What crosses a stage border is the residual sum, which is the next shortcut too.
    """

    edge_weights = "mean"
    bypass = True

    def __init__(self, hidden: int, dropout: float, first: bool) -> None:
        super().__init__(hidden, (hidden,))
        self.before = None if first else PreActivation(hidden, dropout)
        self.neighbours = Linear(hidden, hidden)
        self.root = Linear(hidden, hidden, bias=False)

    def message(self, state: State) -> Tensor:
        return state[0] if self.before is None else self.before(state[0])

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        convolved = self.neighbours(gathered).add_(self.root(own))
        return (convolved if self.before is None else convolved.add_(state[0]),)


class ResGCNDecoder(nn.Module):
    """logits = dropout(relu(layer_norm(h))) W + b."""

    def __init__(self, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.before = PreActivation(hidden, dropout)
        self.linear = Linear(hidden, classes)

    def forward(self, state: State) -> Tensor:
        logits: Tensor = self.linear(self.before(state[0]))
        return logits


def resgcn(features: int, classes: int, hidden: int, layers: int, dropout: float) -> Model:
    """A dense layer, `layers` SAGE-mean convolutions with pre-activation and shortcut, a dense layer."""
    blocks = [ResGCNBlock(hidden, dropout, first=i == 0) for i in range(layers)]
    return Model(ResGCNEncoder(features, hidden), blocks, ResGCNDecoder(hidden, classes, dropout))
