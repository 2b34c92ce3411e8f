"""Measure this machine: the engine's own stages on small graphs, and a link between two processes.

What an action took is a sum of amounts (work.py) times costs (hardware.py); the costs that explain all measured
actions best, none of them negative, are kept in the cache folder and used by every later forecast.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import nnls

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import default_folder
from gnnpipe_trainer.graph.chunks import ChunkedGraph, cut
from gnnpipe_trainer.graph.sources import load_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.linear import WeightGradientQueue, defer_weight_gradients
from gnnpipe_trainer.pipeline.aggregate import RowBlock, aggregate
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.schedule import Work
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups
from gnnpipe_trainer.planning.cut import count_cut
from gnnpipe_trainer.planning.hardware import CPU, Costs, Hardware
from gnnpipe_trainer.planning.link_probe import probe_link
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.stored import save_calibration
from gnnpipe_trainer.planning.work import Amounts, StageWork

EPOCHS = 3  # the quickest of each action counts: the others were disturbed
UNITS = [field.name for field in fields(Costs) if field.name not in ("edge", "message", "epoch")]


@dataclass(frozen=True)
class Sample:
    """An action as it was measured."""

    work: Work
    amounts: dict[str, float]
    seconds: float


# Few layers are enough: widths, degrees and chunk sizes are what must differ. (model, layers, hidden, dropout, chunks,
# vertices, degree)
RUNS: list[tuple[str, int, int, float, int, int, float]] = [
    ("gcnii", 4, 64, 0.5, 4, 12_000, 20),
    ("gcnii", 4, 64, 0.0, 32, 12_000, 20),
    ("gcnii", 4, 128, 0.0, 4, 6_000, 8),
    ("gcn", 4, 32, 0.0, 8, 6_000, 60),
    ("resgcn", 4, 64, 0.5, 8, 12_000, 12),
    ("sage", 4, 64, 0.0, 16, 12_000, 30),
    ("gat", 2, 32, 0.0, 4, 2_000, 10),
]


def calibrate(folder: Path | None = None) -> Hardware:
    """About ten seconds on an idle machine; the result is remembered in the cache folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        samples = [sample for run in RUNS for sample in measure(_job(*run))]
        edge = edge_seconds()
    finally:
        torch.set_num_threads(threads)
    link, message, baseline = probe_link()
    costs = fit(samples, edge, message)
    measured = Hardware(
        f"this machine ({len(os.sched_getaffinity(0))} cores)",
        costs,
        memory_bytes=None,
        baseline_bytes=baseline,
        near=link,
        far=link,
        ranks_per_machine=CPU.ranks_per_machine,
        cores=len(os.sched_getaffinity(0)),
    )
    save_calibration(measured, folder or default_folder())
    return measured


def fit(samples: list[Sample], edge: float, message: float) -> Costs:
    """The costs that explain the samples with the least relative error, given what an edge costs."""
    rows = np.array([[sample.amounts[unit] for unit in UNITS] for sample in samples])
    took = np.array([sample.seconds for sample in samples])
    left = 1 - edge * np.array([sample.amounts["edge"] for sample in samples]) / took
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(rows / scale / took[:, None], left.clip(min=0))
    costs = dict(zip(UNITS, map(float, found / scale), strict=True))
    return Costs(edge=edge, **costs, message=message, epoch=CPU.costs.epoch)


def edge_seconds(rows: int = 4_000, degree: int = 25, width: int = 64) -> float:
    """The aggregation kernel alone, per edge and column: in whole stages it hides among costs that grow alike."""
    columns = torch.randint(0, 2 * rows, (rows * degree,), dtype=torch.int32)
    block = RowBlock(
        torch.arange(0, rows * degree + 1, degree, dtype=torch.int32), columns, torch.rand(rows * degree)
    )
    source = torch.rand(2 * rows, width)
    taken = []
    for _ in range(5 * EPOCHS):
        start = time.thread_time()
        aggregate(block, source)
        taken.append(time.thread_time() - start)
    return min(taken) / (rows * degree * width)


def errors(samples: list[Sample], costs: Costs) -> list[float]:
    """Relative error of each sample under these costs."""
    values = asdict(costs)
    return [
        sum(values[unit] * amount for unit, amount in sample.amounts.items()) / sample.seconds - 1
        for sample in samples
    ]


def measure(job: GNNPipeJob) -> list[Sample]:
    """Each action of each stage of a two-stage job, run alone in this process by the engine's own code."""
    plan = make_plan(job)
    graph = cut(load_graph(job.spec.graph, Path()), plan.ways, plan.chunks)
    chunk_of = np.repeat(np.arange(graph.num_chunks), np.diff(graph.bounds))
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
    counted = count_cut(graph.indices.astype(np.int64), targets, chunk_of, plan.ways, plan.chunks)
    shape = built_in_shape(job.spec.model, graph.num_features, graph.num_classes)
    samples = []
    for stage, layers in enumerate(plan.layers_per_stage):
        work = StageWork(shape, plan.first_layer(stage), layers, job.spec.parallelism.history.mode)
        taken = _time_stage(job, graph, stage)
        for kind, amounts in work.amounts(counted).items():
            samples.append(Sample(kind, _totals(amounts), taken[kind]))
    return samples


def _totals(amounts: Amounts) -> dict[str, float]:
    return {unit: float(amount.sum()) for unit, amount in amounts.items()}


def _time_stage(job: GNNPipeJob, graph: ChunkedGraph, stage: int) -> dict[Work, float]:
    """Seconds of all slots of a stage, by action: for each slot the quickest of the epochs."""
    plan = make_plan(job)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes)
    nobody = Groups(*[cast(Any, None)] * 4)  # nothing is sent
    topology = Topology(plan.stages, plan.ways, stage * plan.ways)
    engine = Engine(job, plan, graph, model, topology, nobody, torch.device("cpu"))
    seconds = {work: np.full(engine.slots, np.inf) for work in Work}
    for epoch in range(EPOCHS):
        taken = _time_epoch(engine, epoch)
        for work in Work:
            seconds[work] = np.minimum(seconds[work], taken[work])
    return {work: float(values.sum()) for work, values in seconds.items()}


def _time_epoch(engine: Engine, epoch: int) -> dict[Work, Any]:
    seconds = {work: np.zeros(engine.slots) for work in Work}
    order = list(range(engine.slots))
    engine.stage.start_epoch(epoch, Freshness(engine.shard, order))
    outputs: dict[int, tuple[torch.Tensor, ...]] = {}
    for slot in order:
        rows = engine.shard.inward.rows_of(slot)
        received = tuple(torch.randn(rows.stop - rows.start, width) for width in engine._border_widths_in)
        start = time.thread_time()
        outputs[slot] = engine.stage.forward(slot, received)
        seconds[Work.FORWARD][slot] = time.thread_time() - start
    for slot in reversed(order):
        gradients = tuple(torch.ones_like(tensor) for tensor in outputs.pop(slot))
        queue = WeightGradientQueue()
        start = time.thread_time()
        with defer_weight_gradients(queue):
            engine.stage.backward(slot, gradients)
        between = time.thread_time()
        queue.run()
        seconds[Work.INPUT_GRADIENT][slot] = between - start
        seconds[Work.WEIGHT_GRADIENT][slot] = time.thread_time() - between
    engine.stage.end_epoch()
    for parameter in engine.parameters:
        parameter.grad = None
    return seconds


def _job(
    kind: str, layers: int, hidden: int, dropout: float, chunks: int, vertices: int, degree: float
) -> GNNPipeJob:
    graph = {"source": "synthetic", "vertices": vertices, "averageDegree": degree, "features": 64}
    return parse_job(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "calibration"},
            "spec": {
                "graph": graph,
                "model": {"kind": kind, "layers": layers, "hidden": hidden, "dropout": dropout},
                "parallelism": {"stages": 2, "chunks": chunks},
            },
        }
    )
