"""The plainest way to run a Model: one process, the whole graph, ordinary autograd. Slow, easy to trust."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnpipe_trainer.models.block import ConvBlock, EdgeWeights, Model, State


def full_graph_forward(model: Model, features: Tensor, edge_index: Tensor) -> Tensor:
    """Logits [V, C] of features [V, F]; edge_index [2, E] leads from source to target, without self-loops."""
    state: State = model.encoder(features)
    for block in model.block_list():
        message = block.message(state)
        if isinstance(block, ConvBlock):
            gathered = block.convolve(message, message.size(0), edge_index)
        else:
            assert block.edge_weights is not None, "a block without edge weights is a ConvBlock"
            gathered = _weighted_sum(block.edge_weights, message, edge_index)
        state = block.update(gathered, message, state)
    logits: Tensor = model.decoder(state)
    return logits


def _weighted_sum(kind: EdgeWeights, message: Tensor, edge_index: Tensor) -> Tensor:
    sources, targets = edge_index
    if kind == "sym":
        loops = torch.arange(message.size(0), device=message.device)
        sources, targets = torch.cat([sources, loops]), torch.cat([targets, loops])
    ones = torch.ones(targets.numel(), dtype=message.dtype, device=message.device)
    in_degree = torch.zeros_like(message[:, 0]).detach().index_add(0, targets, ones)
    if kind == "sym":
        weights = (in_degree[sources] * in_degree[targets]).rsqrt()
    elif kind == "mean":
        weights = 1 / in_degree[targets]
    else:
        weights = ones
    return torch.zeros_like(message).index_add(0, targets, weights[:, None] * message[sources])
