"""How accurate the model is, exactly and on the whole graph; when that is looked at, and when it ends training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist

from gnnpipe_api.job import TrainingSpec
from gnnpipe_trainer.models.loss import score, score_counts
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.report import Accuracy
from gnnpipe_trainer.weights import Average, Best, versions


def evaluate(engine: Engine, control: dist.ProcessGroup) -> Accuracy:
    """Exact accuracies on the whole graph, known to every rank."""
    logits = engine.exact_pass()
    labels = engine.shard.graph.labels
    counts = torch.zeros(3, 3 if labels.ndim == 2 else 2, dtype=torch.int64)
    if logits is not None:
        masks = engine.shard.masks
        for row, split in enumerate(("train", "val", "test")):
            counts[row] = score_counts(logits, engine.shard.labels, masks[split]).cpu()
    dist.all_reduce(counts, group=control)
    train_score, val_score, test_score = (score(row) for row in counts)
    return Accuracy(train_score, val_score, test_score)


def evaluations(
    engine: Engine, control: dist.ProcessGroup, averages: Sequence[Average]
) -> Iterator[Accuracy]:
    """Of every version of the weights that may be kept; the model has it while its accuracy is looked at."""
    for version in versions(averages):
        with version:
            yield evaluate(engine, control)


def best_of(found: Iterable[Accuracy]) -> Accuracy:
    """By validation; the first of equals, as Best keeps it."""
    return max(found, key=lambda accuracy: accuracy.val)


def is_evaluated(epoch: int, training: TrainingSpec) -> bool:
    return (epoch + 1) % training.evaluate_every == 0 or epoch + 1 == training.epochs


def gave_up(training: TrainingSpec, epoch: int, best: Best) -> bool:
    """Early stopping after `epoch`: no better validation accuracy for `patience` epochs."""
    if training.early_stopping is None or not is_evaluated(epoch, training):
        return False
    return epoch - best.epoch >= training.early_stopping.patience
