"""The best weights so far, and the whole model brought together from its stages."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.report import Accuracy


class Best:
    """Weights of the epoch with the best validation accuracy; the earlier one on a tie."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self.weights = [p.detach().clone() for p in parameters]
        self.epoch = -1
        self.accuracy: Accuracy | None = None

    def offer(self, epoch: int, accuracy: Accuracy) -> bool:
        if self.accuracy is not None and accuracy.val <= self.accuracy.val:
            return False
        self.epoch, self.accuracy = epoch, accuracy
        for kept, parameter in zip(self.weights, self._parameters, strict=True):
            kept.copy_(parameter.detach())
        return True

    @torch.no_grad()
    def restore(self) -> None:
        for kept, parameter in zip(self.weights, self._parameters, strict=True):
            parameter.copy_(kept)


def collect_model(model: Model, engine: Engine, control: dist.ProcessGroup) -> dict[str, Tensor] | None:
    """The whole model's state_dict on rank 0 (None elsewhere): every stage's first way sends its part."""
    topology = engine.topology
    if topology.way == 0 and not topology.is_first:
        dist.send(_flat(engine.parameters), 0, group=control)
    if topology.rank != 0:
        return None
    for stage in range(1, topology.stages):
        theirs = engine.parameters_of(stage)
        message = torch.empty(sum(p.numel() for p in theirs), dtype=engine.dtype)
        dist.recv(message, topology.rank_of(stage, 0), group=control)
        _fill(theirs, message)
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    parts = [p.detach().reshape(-1).cpu() for p in parameters]
    return torch.cat(parts) if parts else torch.zeros(0)


@torch.no_grad()
def _fill(parameters: list[nn.Parameter], values: Tensor) -> None:
    for parameter, part in zip(parameters, torch.split(values, [p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))
