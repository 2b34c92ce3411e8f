"""What messages cost: small real pipelines between two ranks, and a ping-pong over the same channels.

And what ranks lose by taking turns: a real pipeline with two ranks for each of its cores.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any, cast

import torch
import torch.distributed as dist

from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.engine import Engine, _Run
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.schedule import slot_order
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import PIPELINE, Channel, Groups, Traffic
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.train import make_optimizer

EPOCHS = 3  # of a pipeline, after one that warms up
TURN_EPOCHS = 4
SMALL, LARGE = 64, 250_000  # numbers in a ping-pong's message; a chunk's activations are about a megabyte
BALLS = 20


def talk(rank: int, benches: list[Bench]) -> dict[str, Any]:
    """Measured by ranks 0 and 1; every rank calls it, because all make the groups."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    if rank > 1:
        return {}
    return {"pipelines": [_pipeline(rank, bench, groups) for bench in benches], "link": _link(rank, groups)}


def _pipeline(rank: int, bench: Bench, groups: list[dist.ProcessGroup]) -> dict[str, float]:
    """An epoch's messages at this rank's end, and the processor time that they took, by all its threads."""
    engine = _engine(rank, bench, groups)
    found = [_epoch(engine, epoch) for epoch in range(1 + EPOCHS)][1:]
    return {name: statistics.median(epoch[name] for epoch in found) for name in found[0]}


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
        engine = _engine(rank, bench, groups)
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


def _engine(rank: int, bench: Bench, groups: list[dist.ProcessGroup]) -> Engine:
    none = cast(Any, None)  # one way, nothing to agree on
    model = build_model(bench.job.spec.model, bench.graph.num_features, bench.graph.num_classes)
    return Engine(
        bench.job,
        bench.plan,
        bench.graph,
        model,
        Topology(bench.plan.stages, 1, rank),
        Groups(groups[0], groups[1], none, none),
        torch.device("cpu"),
    )


def _epoch(engine: Engine, epoch: int) -> dict[str, float]:
    """As Engine.train_epoch, with a stopwatch: what is not spent inside an action is spent on messages."""
    order = slot_order(engine.slots, engine.job.spec.training.seed, epoch, shuffle=True)
    process, thread, moving = time.process_time(), time.thread_time(), 0.0
    freshness = Freshness(engine.shard, order)
    engine.stage.start_epoch(epoch, freshness)
    freshness.prepare(engine.edge_kinds)  # else it would be done while a message is awaited
    run = _Run(engine, order, freshness)
    for action in engine.schedule:
        start = time.thread_time()
        run.do(action)
        if action.move is not None:
            moving += time.thread_time() - start
    for channel in engine._channels.values():
        channel.flush()
    engine.stage.end_epoch()
    other_threads = time.process_time() - process - (time.thread_time() - thread)
    traffic = engine.traffic.take()
    return {
        "messages": float(sum(action.move is not None for action in engine.schedule)),
        "bytes": float(traffic.sent[PIPELINE] + traffic.received[PIPELINE]),
        "cores": moving + other_threads,
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
