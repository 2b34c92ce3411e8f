"""A model of one's own: attention layers of torch-geometric with residuals. Used by custom-model.yaml.

A block wraps one conv that takes ((x_source, x_target), edge_index). `message` is what neighbours read,
`update` makes the next state of a vertex of what the conv returned.
"""

from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, TransformerConv

from gnnpipe_trainer.models import ConvBlock, Linear, Model, State


class Attention(ConvBlock):
    """h' = h + conv(dropout(relu(layer_norm(h))))."""

    def __init__(self, conv: nn.Module, hidden: int, dropout: float) -> None:
        super().__init__(conv, message_width=hidden, widths=(hidden,))
        self.before = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(dropout))

    def message(self, state: State) -> Tensor:
        return self.before(state[0])

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        return (state[0] + gathered,)


class Encoder(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.linear = Linear(features, hidden)

    def forward(self, features: Tensor) -> State:
        return (self.linear(features),)


class Decoder(nn.Module):
    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.linear = Linear(hidden, classes)

    def forward(self, state: State) -> Tensor:
        return self.linear(self.norm(state[0]).relu())


def build(features: int, classes: int, hidden: int, layers: int, dropout: float, heads: int = 4) -> Model:
    """GATv2Conv and TransformerConv in turn; `heads` comes from spec.model.options."""
    convs = [
        (GATv2Conv if layer % 2 == 0 else TransformerConv)(hidden, hidden // heads, heads=heads)
        for layer in range(layers)
    ]
    blocks = [Attention(conv, hidden, dropout) for conv in convs]
    return Model(Encoder(features, hidden), blocks, Decoder(hidden, classes))
