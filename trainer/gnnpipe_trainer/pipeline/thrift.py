"""Decides `wireZeros: auto`: once, when two epochs have shown how long a stage computes.

To find the zeros costs both ends of a border time, so it pays only where the bytes that it saves would be waited
for: where a border's bytes are on their way for long beside what a stage computes. The link is timed then and there,
with messages of about the size that training sends. All ranks come to the same decision.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping

import torch
import torch.distributed as dist

from gnnpipe_trainer.pipeline.engine import Engine, EpochTimes
from gnnpipe_trainer.pipeline.wire import PIPELINE
from gnnpipe_trainer.pipeline.worth import worth_skipping

log = logging.getLogger("gnnpipe")

PROBE_BYTES = 1 << 20  # about what a chunk's activations are
PROBES = 5  # the quickest counts: the first has to open the connection, others meet a busy machine
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Thrift:
    """Whether this run leaves out zeros: as its checkpoint did, or as its second epoch shows."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._open = engine, is_open(engine)

    def restore(self, skipped: bool) -> None:
        """A run that goes on keeps to what was decided; nothing may have been."""
        if skipped and self._open:
            self._engine.skip_zeros()
            self._open = False

    def after_epoch(self, epochs_run: int, times: EpochTimes) -> None:
        """Every rank calls it after each epoch of this run."""
        if self._open and epochs_run == 2:  # the first one takes longer than others
            decide(self._engine, times)
            self._open = False


def is_open(engine: Engine) -> bool:
    """Whether there is anything to decide; the same on every rank."""
    model, plan = engine.model.block_list(), engine.plan
    borders = [model[plan.first_layer(stage) - 1] for stage in range(1, plan.stages)]
    asked = engine.job.spec.parallelism.wire_zeros
    may_skip = asked == "auto" and any(block.gradient_stops_at_zeros for block in borders)
    return may_skip and not on_one_machine(os.environ)


def on_one_machine(environment: Mapping[str, str]) -> bool:
    """Ranks that met at a loopback address have no link between them, only a machine that may be busy when it is timed:
    a run that is killed and resumed must not decide otherwise."""
    return environment.get("MASTER_ADDR") in LOOPBACK


def decide(engine: Engine, times: EpochTimes) -> None:
    """After an epoch that took these times; every rank calls it."""
    topology = engine.topology
    borders = (not topology.is_first) + (not topology.is_last)
    crossed = (times.traffic.sent[PIPELINE] + times.traffic.received[PIPELINE]) / borders
    mine = torch.tensor([crossed * _seconds_per_byte(engine), times.seconds - times.wait_seconds])
    everyone = [torch.empty_like(mine) for _ in range(topology.world)]
    dist.all_gather(everyone, mine, group=engine.groups.control)
    link, busy = torch.stack(everyone).max(0).values.tolist()
    if worth_skipping(link, busy):
        engine.skip_zeros()
        if topology.rank == 0:
            log.info(
                "spec.parallelism.wireZeros: auto skips zeros from now on: an epoch's bytes are %.2f s on their way, "
                "a stage computes for %.2f s",
                link,
                busy,
            )


def _seconds_per_byte(engine: Engine) -> float:
    """On the way to the next stage, there and for an answer back; borders are timed one after another."""
    topology, groups = engine.topology, engine.groups
    message = torch.zeros(PROBE_BYTES, dtype=torch.uint8, device=engine.device)
    answer = torch.zeros(1, device=engine.device)
    if not topology.is_first:
        before = topology.rank_of(topology.stage - 1)
        for _ in range(PROBES):
            dist.recv(message, before, group=groups.activations)
            dist.send(answer, before, group=groups.gradients)
    taken = []
    for _ in range(0 if topology.is_last else PROBES):
        after = topology.rank_of(topology.stage + 1)
        start = time.perf_counter()
        dist.send(message, after, group=groups.activations)
        dist.recv(answer, after, group=groups.gradients)
        float(answer)  # a GPU is waited for
        taken.append(time.perf_counter() - start)
    return min(taken, default=0.0) / PROBE_BYTES
