"""Any torch-geometric conv that takes a pair can be a block, and gives the same chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, GraphConv, SAGEConv, TransformerConv

from gnnpipe_trainer.models import ConvBlock, FirstTensor, Model, RawFeatures, State
from gnnpipe_trainer.models.gat import GATBlock
from gnnpipe_trainer.models.layers import Between
from gnnpipe_trainer.models.reference import full_graph_forward

FEATURES, WIDTH = 7, 6


def conv_block(conv: nn.Module) -> ConvBlock:
    return ConvBlock(conv, FEATURES, (WIDTH,))


CONVS: dict[str, Callable[[], nn.Module]] = {
    "gat": lambda: GATConv(FEATURES, 3, heads=2),
    "gatv2": lambda: GATv2Conv(FEATURES, 3, heads=2),
    "transformer": lambda: TransformerConv(FEATURES, 3, heads=2),
    "graph": lambda: GraphConv(FEATURES, WIDTH),
    "sage-max": lambda: SAGEConv(FEATURES, WIDTH, aggr="max"),
}
BLOCKS: dict[str, Callable[[], ConvBlock]] = {
    **{name: lambda make=make: conv_block(make()) for name, make in CONVS.items()},  # type: ignore[misc]
    "built-in gat": lambda: GATBlock(FEATURES, WIDTH, Between(WIDTH, "none", 0.0, False), 2, True, 0.0),
}


def parameter_gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("name", CONVS)
def test_a_conv_block_over_the_whole_graph_is_the_conv(name: str, graph: Any) -> None:
    conv = CONVS[name]()
    model = Model(RawFeatures(), [conv_block(conv)], FirstTensor())
    torch.testing.assert_close(
        full_graph_forward(model, graph.features, graph.edge_index),
        conv(graph.features, graph.edge_index),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_chunks_with_their_halo_give_the_rows_and_gradients_of_the_whole(name: str, graph: Any) -> None:
    block = BLOCKS[name]()
    features = graph.features.clone().requires_grad_()
    weights = torch.randn(features.size(0), WIDTH)

    def backward(h: Tensor) -> list[Tensor]:
        block.zero_grad(set_to_none=True)
        features.grad = None
        (h * weights).sum().backward()
        assert features.grad is not None
        return [*parameter_gradients(block), features.grad]

    whole = full_graph_forward(Model(RawFeatures(), [block], FirstTensor()), features, graph.edge_index)
    expected = backward(whole)
    in_chunks = by_chunks(block, (features,), graph.edge_index, [0, 13, 14, 31, features.size(0)])
    torch.testing.assert_close(in_chunks, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(backward(in_chunks), expected, rtol=1e-11, atol=1e-11)


def by_chunks(block: ConvBlock, state: State, edge_index: Tensor, borders: list[int]) -> Tensor:
    """What the engine does: own rows, then halo rows; edges renumbered to those rows."""
    message = block.message(state)
    rows = []
    for start, end in pairwise(borders):
        own = torch.arange(start, end)
        sources, targets = edge_index[:, (edge_index[1] >= start) & (edge_index[1] < end)]
        halo = torch.unique(sources[(sources < start) | (sources >= end)])
        needed = torch.cat([own, halo])
        row_of = torch.full((message.size(0),), -1)
        row_of[needed] = torch.arange(needed.numel())
        gathered = block.convolve(
            message[needed], own.numel(), torch.stack([row_of[sources], targets - start])
        )
        part = tuple(tensor[own] for tensor in state)
        rows.append(block.update(gathered, message[own], part)[0])
    return torch.cat(rows)
