"""The best weights so far, their averages over the epochs, and the whole model brought together from its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gnnpipe_api.job import TrainingSpec
from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.report import Accuracy
from gnnpipe_trainer.staleness.carry import TAILS

Share = Callable[[int], float]  # what the weights after an epoch count for in their average


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
        _put(self._state, self.weights)


class Average:
    """A moving average of a stage's weights over the epochs, which training itself does not read.

    After epoch t it is (1 - s_t) x old + s_t x new; s_0 is 1.
    """

    def __init__(self, name: str, state: dict[str, Tensor], share: Share) -> None:
        self.name, self._state, self._share = name, state, share
        self.weights = {name: tensor.clone() for name, tensor in state.items()}

    def forget(self) -> None:
        """As if no epoch had been taken in: after one that made no numbers of the weights, none would come back."""
        _put(self.weights, self._state)

    @torch.no_grad()
    def follow(self, epoch: int) -> None:
        """Take in the weights after `epoch`. What is counted in whole numbers has no mean: the last is kept."""
        share = self._share(epoch)
        for name, kept in self.weights.items():
            if kept.is_floating_point():
                kept.lerp_(self._state[name], share)
            else:
                kept.copy_(self._state[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average for its weights meanwhile; after that its own again, bit for bit."""
        own = {name: tensor.clone() for name, tensor in self._state.items()}
        _put(self._state, self.weights)
        try:
            yield
        finally:
            _put(self._state, own)


@torch.no_grad()
def _put(state: dict[str, Tensor], weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        state[name].copy_(tensor)


def ema(decay: float) -> Share:
    """The plain mean of the epochs so far, until that is as slow as the decay."""
    return lambda epoch: 1.0 - min(decay, epoch / (epoch + 1))


def tail(parts: int) -> Share:
    """Reaches back over about the last of so many parts of the epochs so far: early it is young, late it is smooth."""
    return lambda epoch: parts / (epoch + parts)


def averages_of(training: TrainingSpec, state: dict[str, Tensor]) -> list[Average]:
    """As a manifest without auto asks for them."""
    averaging = training.averaging
    if averaging.mode == "tail":
        return [Average(name, state, tail(parts)) for name, parts in TAILS.items()]
    return [Average("ema", state, ema(averaging.decay))] if averaging.mode == "ema" else []


def versions(averages: Sequence[Average]) -> list[AbstractContextManager[None]]:
    """What is to be evaluated: the model with each of the averages for its weights, or as it is if there are none."""
    return [average.in_place() for average in averages] or [nullcontext()]


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
