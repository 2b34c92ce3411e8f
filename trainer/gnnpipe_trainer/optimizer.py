"""The optimizer of a stage's weights, and its step."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import nn

from gnnpipe_api.job import TrainingSpec


def make_optimizer(
    training: TrainingSpec, parameters: list[nn.Parameter], blocks: nn.Module | None = None
) -> torch.optim.Optimizer:
    """Each rank steps its own stage's weights: they live nowhere else. `blocks` may have a decay of their own."""
    rate, decay = training.learning_rate, training.weight_decay
    in_blocks = set() if blocks is None else {id(parameter) for parameter in blocks.parameters()}
    own_decay = decay if training.block_weight_decay is None else training.block_weight_decay
    # One after another, never sorted by decay: a checkpoint knows parameters by their order.
    groups = [
        {"params": list(some), "weight_decay": own_decay if inside else decay}
        for inside, some in groupby(parameters, lambda parameter: id(parameter) in in_blocks)
    ] or [{"params": [nn.Parameter(torch.zeros(0))]}]
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=rate, weight_decay=decay, momentum=training.momentum)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=rate, weight_decay=decay)


def take_step(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One step with this rate, after which the gradients are clear."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
