"""The epoch loop of one rank, from top to bottom.

manifest -> graph -> model -> engine -> [epoch, step, evaluate] -> report. Every rank runs this; rank 0 reports.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gnnpipe_api.job import GNNPipeJob, TrainingSpec
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.loss import score, score_counts
from gnnpipe_trainer.pipeline.engine import Engine, make_groups
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.report import Accuracy, RankReport, Reporter
from gnnpipe_trainer.weights import Best, collect_model


def train(job: GNNPipeJob, out: Path, manifest_folder: Path) -> None:
    """Train as the rank that torch.distributed says this process is."""
    training = job.spec.training
    plan = make_plan(job)
    topology = Topology(plan.stages, plan.ways, dist.get_rank())
    device = pick_device(training)
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
    torch.manual_seed(training.seed)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, manifest_folder)
    groups = make_groups(topology, training.stall_timeout_seconds)
    engine = Engine(job, plan, graph, model, topology, groups, device)
    optimizer = make_optimizer(training, engine.parameters)
    reporter = Reporter(job, plan, topology, groups.control, out)
    best = Best(engine.parameters)

    if engine.slots > 1 and job.spec.parallelism.history.warmup == "exact":
        engine.exact_pass(fill_history=True)
    for epoch in range(training.epochs):
        start = time.perf_counter()
        times = engine.train_epoch(epoch)
        optimizer.step()
        optimizer.zero_grad()
        reporter.epoch(epoch, RankReport.of(engine, times, time.perf_counter() - start))
        if is_evaluated(epoch, training):
            accuracy = evaluate(engine, groups.control)
            best.offer(epoch, accuracy)
            reporter.evaluated(epoch, accuracy)
            if gave_up(training, epoch, best):
                break
    best.restore()
    weights = collect_model(model, engine, groups.control)
    reporter.finish(best, weights)


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


def is_evaluated(epoch: int, training: TrainingSpec) -> bool:
    return (epoch + 1) % training.evaluate_every == 0 or epoch + 1 == training.epochs


def gave_up(training: TrainingSpec, epoch: int, best: Best) -> bool:
    """Early stopping: no better validation accuracy for `patience` epochs."""
    return training.early_stopping is not None and epoch - best.epoch >= training.early_stopping.patience


def pick_device(training: TrainingSpec) -> torch.device:
    """CUDA where the process group speaks NCCL; no CUDA call is made elsewhere."""
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_node_local_rank())
    torch.cuda.set_device(device)
    return device


def make_optimizer(training: TrainingSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Each rank steps its own stage's weights: they live nowhere else."""
    rate, decay = training.learning_rate, training.weight_decay
    if not parameters:
        parameters = [nn.Parameter(torch.zeros(0))]
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=training.momentum)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=rate, weight_decay=decay)


