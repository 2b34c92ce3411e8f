"""The epoch loop of one rank, from top to bottom.

manifest -> graph -> model -> engine -> [epoch, step, evaluate] -> report. Every rank runs this; rank 0 reports.
"""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from gnnpipe_api.job import GNNPipeJob, TrainingSpec
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.folder import folder_of
from gnnpipe_trainer.checkpoint.resume import Identity, Start, agree_on_start
from gnnpipe_trainer.checkpoint.saver import Saver
from gnnpipe_trainer.checkpoint.shared import all_see
from gnnpipe_trainer.checkpoint.state import TrainingState
from gnnpipe_trainer.cutting import agree_on_cut
from gnnpipe_trainer.endings import STOP
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.sources import fingerprint
from gnnpipe_trainer.meter import Meter
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.optimizer import make_optimizer, take_step
from gnnpipe_trainer.pipeline.engine import DTYPES, Engine, make_groups
from gnnpipe_trainer.pipeline.history import History
from gnnpipe_trainer.pipeline.schedule import slot_count
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.thrift import Thrift
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.report import RankReport, Reporter
from gnnpipe_trainer.staleness.advice import stability_notice
from gnnpipe_trainer.staleness.figures import StalenessProbe
from gnnpipe_trainer.staleness.guard import Diverged, DivergenceWatch, Ruling, Verdict
from gnnpipe_trainer.staleness.settle import settled
from gnnpipe_trainer.store import job_store
from gnnpipe_trainer.trace import recorder_here
from gnnpipe_trainer.validation import best_of, evaluations, gave_up, is_evaluated
from gnnpipe_trainer.vote import StopVote
from gnnpipe_trainer.weights import Best, averages_of, collect_model, stage_state

WRITING_PATIENCE = timedelta(hours=1)  # with a slow disk; ranks that are gone end it much sooner


def train(job: GNNPipeJob, out: Path, manifest_folder: Path, scratch: Path) -> bool:
    """Train as the rank that torch.distributed says this process is; False if it was asked to stop, and did.

    `scratch` is the launcher's folder, through which it asks.
    """
    training = job.spec.training
    rank = Rank(job, out, manifest_folder)
    start = agree_on_start(rank.identity, rank.saver.checkpoints, rank.groups.control)
    epoch = rank.begin(start)
    if rank.topology.rank == 0:
        start.announce(scratch)
    vote = StopVote(rank.groups.control, (scratch / STOP).exists)
    stopped = vote.stop_now()
    while epoch < training.epochs and not stopped and not gave_up(training, epoch - 1, rank.best):
        due = rank.saver.is_due(epoch) or epoch + 1 == training.epochs
        rank.train_epoch(epoch, due)
        if is_evaluated(epoch, training):
            rank.evaluate(epoch)
        ends = epoch + 1 == training.epochs or gave_up(training, epoch, rank.best)
        stopped = vote.stop_after_epoch() and not ends
        due = due or ends or stopped
        if (verdict := rank.verdict(wait=due)) and rank.judge(verdict).go_back:
            epoch = rank.go_back(verdict)
            continue
        if due and (rank.watch.at_ease or ends or stopped):
            rank.save(epoch)
        else:
            rank.saver.drop()
        epoch += 1
    vote.close()
    rank.close(stopped)
    return not stopped


class Rank:
    """One rank's part of the job, put together, and what it does in an epoch."""

    def __init__(self, job: GNNPipeJob, out: Path, manifest_folder: Path) -> None:
        training, plan = job.spec.training, make_plan(job)
        self.topology = topology = Topology(plan.stages, plan.ways, dist.get_rank())
        graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
        torch.manual_seed(training.seed)
        self.model = build_model(job.spec.model, graph.num_features, graph.num_classes, manifest_folder)
        self.groups = make_groups(topology, training.stall_timeout_seconds)
        device = pick_device(training)
        shard = Shard(graph, topology.way, DTYPES[training.precision], device)
        self.plan = agree_on_cut(plan, self.model, shard, out / "checkpoints", self.groups.control)
        slots = slot_count(plan.stages, plan.ways, plan.chunks)
        decided = settled(job, slots, self.model, [shard], self.groups.control)
        self.engine = Engine(decided, self.plan, graph, self.model, topology, self.groups, device, shard)
        self.engine.traffic.recorder = recorder_here(topology.rank)
        self.optimizer = make_optimizer(training, self.engine.parameters, self.model.blocks)
        weights = stage_state(self.engine, topology.stage)
        self.best, self.averages = Best(weights), averages_of(decided.spec.training, weights)
        self.reporter = Reporter(decided, self.plan, topology, self.groups.control, out)
        self.meter = Meter.here(topology, training.epochs, self.plan.first_layer(topology.stage))
        self.probe = StalenessProbe(self.engine)
        self.identity = Identity(
            job, self.plan, fingerprint(job.spec.graph, manifest_folder), graph.content_hash
        )
        self.state = TrainingState(self.engine, self.optimizer, self.best, self.averages)
        self.saver = Saver(out / "checkpoints", job.spec.checkpoint, topology, job_store())
        self.keeps_checkpoints = all_see(self.saver.checkpoints, self.groups.control)
        self.watch = DivergenceWatch(job, self.groups.control, exact=self.engine.slots == 1)
        self.job, self.manifest_folder = job, manifest_folder
        self.thrift = Thrift(self.engine)
        self._verdict: Verdict | None = None
        self._began = 0

    def begin(self, start: Start) -> int:
        """Come to where training starts, or goes back to; the epoch to go on with."""
        start.apply(self.state, self.reporter)
        content = {} if start.checkpoint is None else start.checkpoint.content
        self.reporter.staleness.restore(content.get("staleness"))
        self.watch.restore(content.get("divergence"))
        self.thrift.restore(content.get("zerosSkipped", False))
        if self.watch.rollbacks:
            self.watch.calm(self.histories)
        elif start.epoch == 0:
            notice = stability_notice(self.job, self.probe.expected_share(self.groups.control))
            if notice is not None:
                self.reporter.note(notice)
        self._began = start.epoch
        return start.epoch

    @property
    def histories(self) -> list[History]:
        return [gather.history for gather in self.engine.stage.gathers if gather.history is not None]

    def train_epoch(self, epoch: int, due: bool) -> None:
        """`due`: a checkpoint is to follow, so history is written as soon as it is whole."""
        self.saver.give_back()
        start = time.perf_counter()
        saves = due and self.keeps_checkpoints
        times = self.engine.train_epoch(epoch, partial(self._between, epoch, saves))
        staleness = self.probe.take(epoch)
        rate = self.watch.learning_rate(epoch)
        take_step(self.optimizer, rate)
        for average in self.averages:
            average.follow(epoch)
        report = RankReport.of(self.engine, times, time.perf_counter() - start, staleness)
        self.reporter.epoch(epoch, report, rate)
        self.meter.epoch(epoch, times, report, self.reporter.last_line)
        self._verdict = self.watch.after_epoch(epoch, times.loss)
        self.thrift.after_epoch(epoch - self._began + 1, times)

    def verdict(self, wait: bool) -> Verdict | None:
        """On the epoch before the last; with `wait` on the last one too, so that no checkpoint is unjudged."""
        return self._verdict or (self.watch.settle() if wait else None)

    def judge(self, verdict: Verdict) -> Ruling:
        """Raises Diverged where training must not go on."""
        try:
            ruling = self.watch.judge(verdict)
        except Diverged:
            self.saver.wait()  # so that nothing half-written stays behind
            raise
        if ruling.note is not None:
            self.reporter.note(ruling.note)
        return ruling

    def go_back(self, verdict: Verdict) -> int:
        """To the last good checkpoint, or to the very start, with calmer settings; the epoch to go on with."""
        self.saver.wait()
        wait_for_all(self.groups.control)  # or rank 0 would find what others are still dropping
        self.reporter.settle()
        if self.watch.began_spoilt and self.topology.rank == 0:
            shutil.rmtree(folder_of(self.saver.checkpoints, self._began - 1), ignore_errors=True)
        start = agree_on_start(self.identity, self.saver.checkpoints, self.groups.control)
        if start.checkpoint is None:
            self._forget()
        self.begin(start)
        told = f"Training diverged: {verdict.reason}. It goes on from epoch {start.epoch}"
        self.reporter.note(f"{told} with {self.watch.settings(start.epoch)}")
        return start.epoch

    @torch.no_grad()
    def _forget(self) -> None:
        """Back to the weights that the seed gives, as if nothing had been learned."""
        torch.manual_seed(self.job.spec.training.seed)
        graph = self.engine.shard.graph
        model = build_model(self.job.spec.model, graph.num_features, graph.num_classes, self.manifest_folder)
        first = model.state_dict()
        for name, tensor in stage_state(self.engine, self.topology.stage).items():
            tensor.copy_(first[name])
        self.optimizer.state.clear()
        self.best.forget()
        for average in self.averages:
            average.forget()
        for history in self.histories:
            history.resume_at(0)
            history.live.zero_()
        self.engine.stage.forget_gradients()

    def evaluate(self, epoch: int) -> None:
        found = []
        for accuracy in evaluations(self.engine, self.groups.control, self.averages):
            self.best.offer(epoch, accuracy)  # while the model has these weights
            found.append(accuracy)
        accuracy = best_of(found)
        self.reporter.evaluated(epoch, accuracy)
        self.meter.evaluated(accuracy, self.reporter.last_line)

    def _between(self, epoch: int, saves: bool) -> None:
        """Forward is done. The first stage, which reports, waits for the others now: so the last epoch's line is
        written here. If a checkpoint is still being written, nobody waits for it."""
        if saves and self.saver.idle and self.watch.at_ease:
            self.saver.begin(epoch, self.state.history(between=True))
        self.reporter.settle()

    def save(self, epoch: int) -> None:
        """Copy what a checkpoint needs beside history and go on; it is written meanwhile."""
        if not self.keeps_checkpoints:
            return
        self.reporter.settle()
        if not self.saver.has_begun(epoch):
            self.saver.wait()
            self.saver.begin(epoch, self.state.history(between=False))
        self.meter.checkpointed(self.saver.counts.seconds, self.saver.counts.failed)
        content = self.identity.content(epoch, self.best, self.reporter)
        content |= {"staleness": self.reporter.staleness.saved(), "divergence": self.watch.saved()}
        content |= {"zerosSkipped": self.engine.skips_zeros}
        self.saver.finish(self.state.rest(), content)

    def close(self, stopped: bool) -> None:
        """Leave what a run leaves: a whole checkpoint; the results too, unless it was stopped before its end."""
        self.saver.close()
        wait_for_all(self.groups.control)
        self.reporter.settle()
        if not stopped:
            self.best.restore()
            self.reporter.finish(self.best, collect_model(self.model, self.engine, self.groups.control))
        self.meter.close(self.reporter.last_line)
        wait_for_all(self.groups.control)  # with nobody left to watch it, rank 0 could hang for good


def wait_for_all(control: dist.ProcessGroup) -> None:
    """Nobody goes on before rank 0, which waits for disks, has everything written."""
    options = dist.BarrierOptions()
    options.timeout = WRITING_PATIENCE
    control.barrier(options).wait()


def pick_device(training: TrainingSpec) -> torch.device:
    """CUDA where the process group speaks NCCL; no CUDA call is made elsewhere."""
    if dist.get_backend() != "nccl":
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_node_local_rank())
    torch.cuda.set_device(device)
    return device
