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

    def __init__(self, state: dict[str, Tensor]) -> None:
        self._state = state
        self.weights = {name: tensor.clone() for name, tensor in state.items()}
        self.epoch = -1
        self.accuracy: Accuracy | None = None

    def offer(self, epoch: int, accuracy: Accuracy) -> bool:
        if self.accuracy is not None and accuracy.val <= self.accuracy.val:
            return False
        self.epoch, self.accuracy = epoch, accuracy
        for name, kept in self.weights.items():
            kept.copy_(self._state[name])
        return True

    def forget(self) -> None:
        self.epoch, self.accuracy = -1, None

    def restore(self) -> None:
        for name, kept in self.weights.items():
            self._state[name].copy_(kept)


def stage_state(engine: Engine, stage: int) -> dict[str, Tensor]:
    """Parameters and buffers of a stage by their names in the whole model, sharing memory with them."""
    first = engine.plan.first_layer(stage)
    parts = [f"blocks.{index}." for index in range(first, first + engine.plan.layers_per_stage[stage])]
    parts += ["encoder."] if stage == 0 else []
    parts += ["decoder."] if stage == engine.plan.stages - 1 else []
    return {n: t for n, t in engine.model.state_dict().items() if n.startswith(tuple(parts))}


def parameter_names(engine: Engine) -> dict[str, nn.Parameter]:
    """This rank's parameters by their names in the whole model, in the order the optimizer has them."""
    names = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    return {names[id(parameter)]: parameter for parameter in engine.parameters}


def collect_model(model: Model, engine: Engine, control: dist.ProcessGroup) -> dict[str, Tensor] | None:
    """The whole model's state_dict on rank 0 (None elsewhere): every stage's first way sends its part."""
    topology = engine.topology
    if topology.way == 0 and not topology.is_first:
        for tensor in stage_state(engine, topology.stage).values():
            dist.send(tensor.cpu().contiguous(), 0, group=control)
    if topology.rank != 0:
        return None
    for stage in range(1, topology.stages):
        for tensor in stage_state(engine, stage).values():
            message = torch.empty_like(tensor, device="cpu", memory_format=torch.contiguous_format)
            dist.recv(message, topology.rank_of(stage, 0), group=control)
            tensor.copy_(message)
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
