"""What a model is made of: an encoder, a list of blocks, a decoder.

A block is one aggregation over the graph with the per-vertex work before and after it. Blocks know nothing
of chunks, stages or ranks: the engine calls `message`, gathers over the graph, calls `update`. Everything but
the gathering is row-wise (a row of the result depends on the same row of the input only), which is why the
engine may call it on any set of vertices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, cast

from torch import Tensor, nn

from gnnpipe_trainer.kernels import Entry

State = tuple[Tensor, ...]
"""What flows from block to block, each tensor [n, width]: (h,), or (h, h0) with GCNII's initial residual."""

EdgeWeights = Literal["sym", "mean", "sum"]
"""sym: D^-1/2 (A+I) D^-1/2 by in-degree; mean: 1 / in-degree, 0 for isolated vertices; sum: 1."""


class ByHand(Protocol):
    """What `update` does, outside autograd, with [n, width] tensors; see models/by_hand.py."""

    def forward(self, gathered: Tensor, own: Tensor, entry: Entry | None = None) -> Tensor: ...
    def backward(
        self, dh: Tensor, h: Tensor, gathered: Tensor, own: Tensor, d_gathered: Tensor | None, wants_own: bool
    ) -> Tensor | None: ...


class BadModel(ValueError):
    """The manifest asks for a model that cannot be built; the sentence says why and what to change."""


class Block(nn.Module):
    """One aggregation over the graph and the per-vertex work before and after it."""

    edge_weights: EdgeWeights | None = None  # None: the block brings its own conv, see ConvBlock
    gradient_stops_at_zeros = False
    """Whether the weights' gradients depend on that of a number of the state only where the number is not zero, as
    after ReLU and dropout: then `wireZeros: skip` keeps zeros and their gradients off stage borders."""
    by_hand: ByHand | None = None
    """`update` with its backward written out, for states of one tensor; None: autograd finds it."""
    bypass: bool = False  # whether a vertex's own state reaches the next one beside the aggregation too
    follows_mean: bool = False
    """Whether `history.correction: auto` moves its history along with the mean of what has come by in an epoch."""

    def __init__(self, message_width: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.message_width = message_width  # columns of what neighbours read
        self.widths = widths  # of the State that update returns

    @property
    def sends_state(self) -> bool:
        """Whether `message` returns the first tensor of the state as it is."""
        return type(self).message is Block.message

    @property
    def sent_by(self) -> nn.Linear | None:
        """The layer that, without its bias, makes the message out of the first tensor of the state, if one does."""
        return None

    def message(self, state: State) -> Tensor:
        """[n, message_width]: what neighbours read; unless overridden, the first tensor of the state."""
        return state[0]

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        """The next state of n vertices.

        gathered [n, ...]: the sum over in-neighbours with this block's edge weights (with "sym" the vertex
        itself included), or what the conv returned. own [n, message_width]: the vertices' own messages.
        """
        raise NotImplementedError


class ConvBlock(Block):
    """A block around any torch-geometric conv that takes ((x_source, x_target), edge_index)."""

    edge_weights = None

    def __init__(self, conv: nn.Module, message_width: int, widths: tuple[int, ...]) -> None:
        super().__init__(message_width, widths)
        self.conv = conv

    def convolve(self, sources: Tensor, count: int, edge_index: Tensor) -> Tensor:
        """[count, ...]; sources [n, message_width] starts with the count target rows, then come halo rows.

        edge_index [2, E] leads from source row to target row. As targets come first, row i is the same vertex
        on both sides, which is what convs that add self-loops rely on.
        """
        return cast(Tensor, self.conv((sources, sources[:count]), edge_index))

    def update(self, gathered: Tensor, own: Tensor, state: State) -> State:
        """Unless overridden: what the conv returned is the next state."""
        return (gathered,)


class RawFeatures(nn.Module):
    """The encoder of models whose first block aggregates the features themselves."""

    def forward(self, features: Tensor) -> State:
        return (features,)


class FirstTensor(nn.Module):
    """The decoder of models whose last block returns the logits."""

    def forward(self, state: State) -> Tensor:
        return state[0]


class Model(nn.Module):
    """features [n, F] -> encoder -> State -> blocks -> State -> decoder -> logits [n, C].

    constant_first_message: the first block's message is the raw features, without dropout or parameters. If
    that block is a weighted sum, the sum is the same in every epoch and needs computing once.
    """

    def __init__(
        self,
        encoder: nn.Module,
        blocks: Sequence[Block],
        decoder: nn.Module,
        constant_first_message: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.blocks = nn.ModuleList(blocks)
        self.decoder = decoder
        self.constant_first_message = constant_first_message

    def block_list(self) -> list[Block]:
        """The blocks as what they are; nn.ModuleList only promises modules."""
        return [cast(Block, block) for block in self.blocks]
