"""The epoch loop of one rank, from top to bottom.

manifest -> graph -> model -> engine -> [epoch, step, evaluate] -> report. Every rank runs this; rank 0 reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gnnpipe_api.job import GNNPipeJob, TrainingSpec
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.resume import Identity, agree_on_start
from gnnpipe_trainer.checkpoint.saver import Saver
from gnnpipe_trainer.checkpoint.state import TrainingState
from gnnpipe_trainer.endings import STOP
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.sources import fingerprint
from gnnpipe_trainer.meter import Meter
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.loss import score, score_counts
from gnnpipe_trainer.pipeline.engine import Engine, make_groups
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.report import Accuracy, RankReport, Reporter
from gnnpipe_trainer.store import job_store
from gnnpipe_trainer.trace import recorder_here
from gnnpipe_trainer.vote import StopVote
from gnnpipe_trainer.weights import Best, collect_model, stage_state


def train(
    job: GNNPipeJob, out: Path, manifest_folder: Path, scratch: Path, graph_is_there: Callable[[], None]
) -> bool:
    """Train as the rank that torch.distributed says this process is; False if it stopped early because it was asked to.

    `scratch` is the launcher's folder, through which it may ask. `graph_is_there` is called once the long work
    before training, which may keep a rank from answering, is behind it.
    """
    training = job.spec.training
    plan = make_plan(job)
    topology = Topology(plan.stages, plan.ways, dist.get_rank())
    device = pick_device(training)
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
    graph_is_there()
    torch.manual_seed(training.seed)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, manifest_folder)
    groups = make_groups(topology, training.stall_timeout_seconds)
    engine = Engine(job, plan, graph, model, topology, groups, device)
    optimizer = make_optimizer(training, engine.parameters)
    reporter = Reporter(job, plan, topology, groups.control, out)
    meter = Meter.here(topology, training.epochs)
    engine.traffic.recorder = recorder_here(topology.rank)
    best = Best(stage_state(engine, topology.stage))
    identity = Identity(job, plan, fingerprint(job.spec.graph, manifest_folder), graph.content_hash)
    state = TrainingState(engine, optimizer, best)
    saver = Saver(
        out / "checkpoints", job.spec.checkpoint, topology, job_store(), training.stall_timeout_seconds
    )

    def save(epoch: int) -> None:
        reporter.settle()
        saver.wait()
        saver.save(epoch, state.copies(), identity.content(epoch, best, reporter))

    start = agree_on_start(identity, saver.checkpoints, groups.control)
    start.apply(state, reporter)
    if topology.rank == 0:
        start.announce(scratch)
    vote = StopVote(groups.control, (scratch / STOP).exists)
    stopped = vote.stop_now()
    for epoch in range(start.epoch, training.epochs):
        if stopped or gave_up(training, epoch - 1, best):
            break
        began = time.perf_counter()
        times = engine.train_epoch(epoch)
        optimizer.step()
        optimizer.zero_grad()
        reporter.epoch(epoch, RankReport.of(engine, times, time.perf_counter() - began))
        if is_evaluated(epoch, training):
            accuracy = evaluate(engine, groups.control)
            best.offer(epoch, accuracy)
            reporter.evaluated(epoch, accuracy)
        ends = epoch + 1 == training.epochs or gave_up(training, epoch, best)
        stopped = vote.stop_after_epoch() and not ends
        if saver.is_due(epoch) or ends or stopped:
            save(epoch)
    vote.close()
    saver.wait()
    if stopped:
        reporter.settle()
        dist.barrier(group=groups.control)  # nobody leaves before rank 0 has the checkpoint whole
        return False
    best.restore()
    weights = collect_model(model, engine, groups.control)
    reporter.finish(best, weights)
    return True


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
    """Early stopping after `epoch`: no better validation accuracy for `patience` epochs."""
    if training.early_stopping is None or not is_evaluated(epoch, training):
        return False
    return epoch - best.epoch >= training.early_stopping.patience


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
