"""What messages cost: small real pipelines and ways of two ranks, and a ping-pong over a pipeline's channels.

And what ranks lose by taking turns: a real pipeline with two ranks for each of its cores.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.gather import WeightedSum
from gnnpipe_trainer.pipeline.schedule import Move
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import GRAPH, PIPELINE, Channel, Groups, Traffic, Ways
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.timeline import WAIT

EPOCHS = 6  # of a small job, after those that warm up
TURN_EPOCHS = 4
SMALL, LARGE = 64, 250_000  # numbers in a ping-pong's message; a chunk's activations are about a megabyte
BALLS = 20
NOBODY = cast(Any, None)  # where a group is not needed: nothing to agree on


def talk(rank: int, pipelines: list[Bench], ways: list[Bench]) -> dict[str, Any]:
    """Measured by ranks 0 and 1; every rank calls it, because all make the groups."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    if rank > 1:
        return {}
    return {
        "pipelines": [_messages(_pipeline(rank, bench, groups), bench) for bench in pipelines],
        "swaps": [_messages(_one_way(rank, bench, groups[0]), bench) for bench in ways],
        "link": _link(rank, groups),
    }


def take_turns(rank: int, bench: Bench) -> dict[str, Any]:
    """Seconds of an epoch of a pipeline whose ranks are twice as many as the cores that they are kept on.

    Every rank calls it, because all make the groups; of a large machine only a few take part, on a few cores.
    """
    ranks = bench.plan.ranks
    groups = [dist.new_group(list(range(ranks))) for _ in range(2)]
    if rank >= ranks:
        return {}
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[: ranks // 2])
    try:
        engine = _pipeline(rank, bench, groups)
        optimizer = make_optimizer(bench.job.spec.training, engine.parameters)
        begin = 0.0
        for epoch in range(1 + TURN_EPOCHS):
            engine.train_epoch(epoch)
            optimizer.step()
            optimizer.zero_grad()
            begin = begin or time.perf_counter()  # when the first one, which warms up, is over
        return {"turns": (time.perf_counter() - begin) / TURN_EPOCHS}
    finally:
        os.sched_setaffinity(0, allowed)


def _pipeline(rank: int, bench: Bench, groups: list[dist.ProcessGroup]) -> Engine:
    return _engine(rank, bench, Groups(groups[0], groups[1], NOBODY, NOBODY))


def _one_way(rank: int, bench: Bench, group: dist.ProcessGroup) -> Engine:
    return _engine(rank, bench, Groups(NOBODY, NOBODY, group, NOBODY))


def _engine(rank: int, bench: Bench, groups: Groups) -> Engine:
    model = build_model(bench.job.spec.model, bench.graph.num_features, bench.graph.num_classes)
    topology = Topology(bench.plan.stages, bench.plan.ways, rank)
    return Engine(bench.job, bench.plan, bench.graph, model, topology, groups, torch.device("cpu"))


class _Watch:
    """Messages at this rank's end, and the processor time that this thread spends on them.

    As a recorder it is told when each action of the schedule is over; watched ways tell of their swaps.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.messages, self.seconds = 0, 0.0
        self.travel_seconds = 0.0  # of swaps: what this thread computed meanwhile, and then waited
        self._last = time.thread_time()

    def span(self, name: str, start: float, end: float) -> None:
        if name.startswith(WAIT):
            return  # a part of the action that is told next
        now = time.thread_time()
        if name.startswith(tuple(Move)):
            self.count(1, now - self._last)
        self._last = now

    def count(self, messages: int, seconds: float) -> None:
        self.messages += messages
        self.seconds += seconds


class _WatchedWays(Ways):
    def __init__(self, engine: Engine, watch: _Watch) -> None:
        super().__init__(engine.topology, engine.groups.ways, engine.traffic, engine.wire)
        self.watch = watch

    def swap(
        self, outgoing: list[tuple[int, Tensor]], incoming: list[tuple[int, Tensor]]
    ) -> Callable[[], None]:
        start = time.thread_time()
        wait = super().swap(outgoing, incoming)
        ordered = time.thread_time()
        self.watch.count(len(outgoing) + len(incoming), ordered - start)

        def watched() -> None:
            start, clock = time.thread_time(), time.perf_counter()
            wait()
            self.watch.count(0, time.thread_time() - start)
            # Own rows were summed meanwhile. Not by the clock: other threads that took the core are counted already.
            self.watch.travel_seconds += start - ordered + time.perf_counter() - clock

        return watched


def _messages(engine: Engine, bench: Bench) -> dict[str, float]:
    """An epoch's messages at this rank's end, and the processor time that they took, by all its threads."""
    watch = engine.traffic.recorder = _Watch()
    for gather in engine.stage.gathers:
        if isinstance(gather, WeightedSum) and engine.topology.ways > 1:
            gather.ways = _WatchedWays(engine, watch)
    optimizer = make_optimizer(bench.job.spec.training, engine.parameters)
    found = []
    for epoch in range(bench.first_epochs + EPOCHS):
        found.append(_epoch(engine, watch, epoch))
        optimizer.step()
        optimizer.zero_grad()
    found = found[bench.first_epochs :]
    return {name: statistics.median(epoch[name] for epoch in found) for name in found[0]}


def _epoch(engine: Engine, watch: _Watch, epoch: int) -> dict[str, float]:
    """What other threads do is done for messages."""
    process, thread = time.process_time(), time.thread_time()
    traffic = engine.train_epoch(epoch).traffic
    other_threads = time.process_time() - process - (time.thread_time() - thread)
    moved = [counted[kind] for counted in (traffic.sent, traffic.received) for kind in (PIPELINE, GRAPH)]
    return {
        "messages": watch.messages,
        "bytes": sum(moved),
        "cores": watch.seconds + other_threads,
        "travel": watch.travel_seconds,
    }


def _link(rank: int, groups: list[dist.ProcessGroup]) -> dict[str, float]:
    """Seconds one way: of a small message and of a large one."""
    inward, outward = (
        Channel(1 - rank, group, Traffic(), torch.float32, torch.device("cpu"))
        for group in (groups if rank else groups[::-1])
    )
    small, large = (_ping_pong(rank, inward, outward, numbers) for numbers in (SMALL, LARGE))
    return {"small": small, "large": large, "bytes": 4 * (LARGE - SMALL)}


def _ping_pong(rank: int, inward: Channel, outward: Channel, numbers: int) -> float:
    message = (torch.zeros(numbers, 1),)
    taken = []
    for _ in range(BALLS):
        start = time.perf_counter()
        inward.post(numbers)
        if rank == 0:
            outward.send(message)
        inward.receive(numbers, (1,), torch.float32)
        if rank == 1:
            outward.send(message)
        taken.append((time.perf_counter() - start) / 2)
    outward.flush()
    return statistics.median(taken)
