"""What one rank puts into a checkpoint, by name, and takes out of it again.

Names are those of the whole model (`blocks.3.linear.weight`), never of a stage, so that a job cut into other stages
finds its weights. Random numbers and the order of chunks are functions of (seed, epoch): there is nothing to save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnnpipe_trainer.checkpoint.identity import BadCheckpoint
from gnnpipe_trainer.checkpoint.loan import Loan, lend
from gnnpipe_trainer.checkpoint.packed import GRADIENTS, HISTORY, Copies, Packed
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.gather import Gather
from gnnpipe_trainer.pipeline.history import History, WholeGraph
from gnnpipe_trainer.weights import Average, Best, parameter_names, stage_state

Load = Callable[[Callable[[str], bool]], dict[str, Tensor]]


class TrainingState:
    """One rank's weights, optimizer, best and averaged weights and history, as named tensors."""

    def __init__(
        self, engine: Engine, optimizer: torch.optim.Optimizer, best: Best, averages: Sequence[Average] = ()
    ) -> None:
        self.engine, self.optimizer, self.best, self.averages = engine, optimizer, best, averages
        self._copies, self._history_copies = Copies(), Copies()

    def history(self, between: bool) -> Loan:
        """What the next epoch reads, on loan until it begins. `between`: between forward and backward of this one.

        No two at a time: where the memory is a GPU's, it is the same copy that is lent.
        """
        return lend(self._histories(lambda it: it.coming if between else it.live), self._history_copies)

    def rest(self) -> Packed:
        """What is known at the end of an epoch only: copies that stay as they are until the next call."""
        return self._copies.fill(self._gradients() | self._weights())

    def begin(self) -> None:
        """Nothing is done yet: history starts from an exact pass, unless the manifest says otherwise."""
        if self.engine.slots > 1 and self.engine.job.spec.parallelism.history.warmup == "exact":
            self.engine.exact_pass(fill_history=True)

    @torch.no_grad()
    def restore(self, load: Load, epochs_done: int, with_history: bool) -> None:
        """Put back what a checkpoint holds of this rank's part of the model."""
        mine = stage_state(self.engine, self.engine.topology.stage)
        kinds = ("model", "best", *(_kind(average) for average in self.averages))
        prefixes = tuple(
            [f"{kind}.{name}" for name in mine for kind in kinds]
            + [f"optimizer.{name}." for name in parameter_names(self.engine)]
        )
        saved = load(lambda name: name.startswith(prefixes))
        for kind, targets in (("model", mine), ("best", self.best.weights)):
            for name, target in targets.items():
                target.copy_(_fitting(saved, f"{kind}.{name}", target))
        self._restore_averages(saved)
        self._restore_optimizer(saved)
        self._restore_history(load, epochs_done, with_history)

    def _weights(self) -> dict[str, Tensor]:
        """Those of model and optimizer, the best and the averages."""
        topology = self.engine.topology
        tensors: dict[str, Tensor] = {}
        if topology.way > 0:  # all ways of a stage hold the same weights
            return tensors
        for name, tensor in stage_state(self.engine, topology.stage).items():
            tensors[f"model.{name}"] = tensor
            tensors[f"best.{name}"] = self.best.weights[name]
            for average in self.averages:
                tensors[f"{_kind(average)}.{name}"] = average.weights[name]
        for name, parameter in parameter_names(self.engine).items():
            for field, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{name}.{field}"] = value
        return tensors

    def _restore_averages(self, saved: dict[str, Tensor]) -> None:
        for average in self.averages:
            average.forget()  # a checkpoint of a run that had no such average: it begins with these weights
            for name, target in average.weights.items():
                if f"{_kind(average)}.{name}" in saved:
                    target.copy_(_fitting(saved, f"{_kind(average)}.{name}", target))

    def _restore_optimizer(self, saved: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Any]] = {}
        for index, name in enumerate(parameter_names(self.engine)):
            prefix = f"optimizer.{name}."
            fields = {
                key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)
            }
            if fields:
                state[index] = fields
        # Learning rate and weight decay are the manifest's of today: only what was learned is taken over.
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _restore_history(self, load: Load, epochs_done: int, with_history: bool) -> None:
        for gather in self.engine.stage.gathers:
            if gather.history is not None:
                gather.history.resume_at(epochs_done)
        if with_history:
            kept = self._histories(lambda history: history.live) | self._gradients()
            saved = load(kept.__contains__)
            for name, tensor in kept.items():
                if name.endswith(f".{GRADIENTS}") and name not in saved:
                    tensor.zero_()  # they were dropped when this was written: as before the first epoch
                else:
                    tensor.copy_(_fitting(saved, name, tensor))
        elif self.engine.slots > 1:
            self.engine.stage.forget_gradients()
            self.engine.exact_pass(fill_history=True)

    def _histories(self, buffer: Callable[[History], Tensor]) -> dict[str, Tensor]:
        return {name: buffer(history) for name, _, history in self._blocks()}

    def _gradients(self) -> dict[str, Tensor]:
        kept = ((name, gather.kept_gradients) for name, gather, _ in self._blocks())
        return {f"{name}.{GRADIENTS}": tensor for name, tensor in kept if tensor is not None}

    def _blocks(self) -> Iterator[tuple[str, Gather, History]]:
        """Those that keep something from one epoch to the next, under the number each has in the whole model."""
        for block, gather in enumerate(self.engine.stage.gathers, self.engine.stage.first_block):
            if gather.history is not None and not isinstance(gather.history, WholeGraph):
                yield f"{HISTORY}.{block}.way{self.engine.topology.way}", gather, gather.history


def _kind(average: Average) -> str:
    return f"average.{average.name}"


def _fitting(saved: dict[str, Tensor], name: str, target: Tensor) -> Tensor:
    """The saved tensor, if the model of today has room for it."""
    if name not in saved:
        raise BadCheckpoint(
            f"The checkpoint holds no {name}: it was written by another model. "
            "Name another folder with --out, or start over with --fresh"
        )
    if saved[name].shape != target.shape:
        raise BadCheckpoint(
            f"The checkpoint's {name} has shape {list(saved[name].shape)}, but this model's has "
            f"{list(target.shape)}. Name another folder with --out, or start over with --fresh"
        )
    return saved[name]
