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
from gnnpipe_trainer.cutting import agree_on_cut
from gnnpipe_trainer.endings import STOP
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.sources import fingerprint
from gnnpipe_trainer.meter import Meter
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.loss import score, score_counts
from gnnpipe_trainer.pipeline.engine import DTYPES, Engine, make_groups
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.report import Accuracy, RankReport, Reporter
from gnnpipe_trainer.store import job_store
from gnnpipe_trainer.trace import recorder_here
from gnnpipe_trainer.vote import StopVote
from gnnpipe_trainer.weights import Best, collect_model, stage_state


def train(
    job: GNNPipeJob, out: Path, manifest_folder: Path, scratch: Path, graph_is_there: Callable[[], None]
) -> bool:
    """Train as the rank that torch.distributed says this process is; False if it was asked to stop, and did.

    `scratch` is the launcher's folder, through which it asks. `graph_is_there` is called once the long work
    before training, which may keep a rank from answering others, is behind it.
    """
    training = job.spec.training
    rank = Rank(job, out, manifest_folder, graph_is_there)
    start = agree_on_start(rank.identity, rank.saver.checkpoints, rank.groups.control)
    start.apply(rank.state, rank.reporter)
    if rank.topology.rank == 0:
        start.announce(scratch)
    vote = StopVote(rank.groups.control, (scratch / STOP).exists)
    stopped = vote.stop_now()
    for epoch in range(start.epoch, training.epochs):
        if stopped or gave_up(training, epoch - 1, rank.best):
            break
        rank.train_epoch(epoch)
        if is_evaluated(epoch, training):
            rank.evaluate(epoch)
        ends = epoch + 1 == training.epochs or gave_up(training, epoch, rank.best)
        stopped = vote.stop_after_epoch() and not ends
        if rank.saver.is_due(epoch) or ends or stopped:
            rank.save(epoch)
    vote.close()
    rank.close(stopped)
    return not stopped


class Rank:
    """One rank's part of the job, put together, and what it does in an epoch."""

    def __init__(
        self, job: GNNPipeJob, out: Path, manifest_folder: Path, graph_is_there: Callable[[], None]
    ) -> None:
        training, plan = job.spec.training, make_plan(job)
        self.topology = topology = Topology(plan.stages, plan.ways, dist.get_rank())
        graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
        graph_is_there()
        torch.manual_seed(training.seed)
        self.model = build_model(job.spec.model, graph.num_features, graph.num_classes, manifest_folder)
        self.groups = make_groups(topology, training.stall_timeout_seconds)
        device = pick_device(training)
        shard = Shard(graph, topology.way, DTYPES[training.precision], device)
        self.plan = agree_on_cut(plan, self.model, shard, out / "checkpoints", self.groups.control)
        self.engine = Engine(job, self.plan, graph, self.model, topology, self.groups, device, shard)
        self.engine.traffic.recorder = recorder_here(topology.rank)
        self.optimizer = make_optimizer(training, self.engine.parameters)
        self.best = Best(stage_state(self.engine, topology.stage))
        self.reporter = Reporter(job, self.plan, topology, self.groups.control, out)
        self.meter = Meter.here(topology, training.epochs)
        self.identity = Identity(
            job, self.plan, fingerprint(job.spec.graph, manifest_folder), graph.content_hash
        )
        self.state = TrainingState(self.engine, self.optimizer, self.best)
        self.saver = Saver(out / "checkpoints", job.spec.checkpoint, topology, job_store())

    def train_epoch(self, epoch: int) -> None:
        start = time.perf_counter()
        times = self.engine.train_epoch(epoch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        report = RankReport.of(self.engine, times, time.perf_counter() - start)
        self.reporter.epoch(epoch, report)
        self.meter.epoch(epoch, times, report, self.reporter.last_line)

    def evaluate(self, epoch: int) -> None:
        accuracy = evaluate(self.engine, self.groups.control)
        self.best.offer(epoch, accuracy)
        self.reporter.evaluated(epoch, accuracy)
        self.meter.evaluated(accuracy, self.reporter.last_line)

    def save(self, epoch: int) -> None:
        """Copy what a checkpoint needs and go on; it is written meanwhile."""
        self.reporter.settle()
        self.saver.wait()
        self.meter.checkpointed(self.saver.counts.seconds)
        content = self.identity.content(epoch, self.best, self.reporter)
        self.saver.save(epoch, self.state.copies(), content)

    def close(self, stopped: bool) -> None:
        """Leave what a run leaves: a whole checkpoint; the results too, unless it was stopped before its end."""
        self.saver.wait()
        self.reporter.settle()
        if stopped:
            dist.barrier(group=self.groups.control)  # nobody leaves before rank 0 has the checkpoint whole
        else:
            self.best.restore()
            self.reporter.finish(self.best, collect_model(self.model, self.engine, self.groups.control))
        self.meter.close(self.reporter.last_line)


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
