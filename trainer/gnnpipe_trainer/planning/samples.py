"""Small jobs whose actions a calibration times, one by one, by the engine's own code."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph, cut
from gnnpipe_trainer.graph.sources import load_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.linear import WeightGradientQueue, defer_weight_gradients
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.schedule import Work
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups
from gnnpipe_trainer.planning.cut import count_cut
from gnnpipe_trainer.planning.forecast import UPDATE_PASSES
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.work import StageWork
from gnnpipe_trainer.train import make_optimizer

EPOCHS = 4  # the first warms up; the median of the others counts, as it does for the epochs that are forecast
REFRESH, STEP = "refresh", "step"  # what an epoch has besides F, I and W
Timings = list[dict[str, float]]  # by stage: seconds of all slots, by action


@dataclass(frozen=True)
class Run:
    """Few layers are enough: widths, degrees and chunk sizes are what must differ."""

    kind: str
    hidden: int
    dropout: float
    chunks: int
    vertices: int
    degree: float
    layers: int = 4

    def job(self) -> GNNPipeJob:
        graph = {
            "source": "synthetic",
            "vertices": self.vertices,
            "averageDegree": self.degree,
            "features": 64,
        }
        model = {"kind": self.kind, "layers": self.layers, "hidden": self.hidden, "dropout": self.dropout}
        return parse_job(
            {
                "apiVersion": "gnnpipe.io/v1alpha1",
                "kind": "GNNPipeJob",
                "metadata": {"name": "calibration"},
                "spec": {
                    "graph": graph,
                    "model": model,
                    "parallelism": {"stages": 2, "chunks": self.chunks},
                },
            }
        )


RUNS = [
    Run("gcnii", 64, 0.5, 4, 12_000, 20),
    Run("gcnii", 64, 0.0, 32, 12_000, 20),
    Run("gcnii", 128, 0.0, 4, 6_000, 8),
    Run("gcn", 32, 0.0, 8, 6_000, 60),
    Run("gcn", 64, 0.0, 4, 3_000, 120),
    Run("gcn", 256, 0.0, 4, 3_000, 10),
    Run("resgcn", 64, 0.5, 8, 12_000, 12),
    Run("resgcn", 128, 0.3, 4, 6_000, 10),
    Run("sage", 64, 0.0, 16, 12_000, 30),
    Run("gat", 32, 0.0, 4, 2_000, 10, layers=2),
]


@dataclass(frozen=True)
class Sample:
    """An action as it was measured."""

    action: str
    amounts: dict[str, float]
    seconds: float


class Bench:
    """A two-stage job in this process, each stage run alone: it is given all it would receive."""

    def __init__(self, run: Run | GNNPipeJob) -> None:
        self.job = run.job() if isinstance(run, Run) else run
        self.plan = make_plan(self.job)

    @cached_property
    def graph(self) -> ChunkedGraph:
        return cut(load_graph(self.job.spec.graph, Path()), self.plan.ways, self.plan.chunks)

    def amounts(self) -> list[dict[str, dict[str, float]]]:
        """By stage and action: units of work of all slots."""
        graph, plan = self.graph, self.plan
        chunk_of = np.repeat(np.arange(graph.num_chunks), np.diff(graph.bounds))
        targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
        counted = count_cut(graph.indices.astype(np.int64), targets, chunk_of, plan.ways, plan.chunks)
        shape = built_in_shape(self.job.spec.model, graph.num_features, graph.num_classes)
        found = []
        for stage, layers in enumerate(plan.layers_per_stage):
            first = plan.first_layer(stage)
            work = StageWork(shape, first, layers, self.job.spec.parallelism.history.mode)
            actions = {
                str(kind): {unit: float(amount.sum()) for unit, amount in amounts.items()}
                for kind, amounts in work.amounts(counted).items()
            }
            actions[REFRESH] = {"refresh": work.entries_to_sort_out(counted)}
            actions[STEP] = {"epoch": 1.0, "row": float(UPDATE_PASSES * shape.parameters(first, layers))}
            found.append(actions)
        return found

    def samples(self, timings: Timings) -> list[Sample]:
        return [
            Sample(action, amounts, taken[action])
            for stage, taken in zip(self.amounts(), timings, strict=True)
            for action, amounts in stage.items()
            if any(amounts.values())
        ]

    def measure(self) -> Timings:
        """Of all slots together."""
        stages = []
        for engine in self._engines:
            optimizer = self._optimizer(engine)
            stages.append([_time_epoch(engine, optimizer, epoch) for epoch in range(EPOCHS)][1:])
        return typical([list(epoch) for epoch in zip(*stages, strict=True)])

    @cached_property
    def _engines(self) -> list[Engine]:
        nobody = Groups(*[cast(Any, None)] * 4)  # nothing is sent
        engines = []
        for stage in range(self.plan.stages):
            model = build_model(self.job.spec.model, self.graph.num_features, self.graph.num_classes)
            topology = Topology(self.plan.stages, self.plan.ways, stage * self.plan.ways)
            engines.append(
                Engine(self.job, self.plan, self.graph, model, topology, nobody, torch.device("cpu"))
            )
        return engines

    def _optimizer(self, engine: Engine) -> torch.optim.Optimizer:
        return make_optimizer(self.job.spec.training, engine.parameters)


class _Stopwatch:
    """Processor time by action: other work on the machine disturbs it little."""

    def __init__(self) -> None:
        self.seconds = {str(action): 0.0 for action in (*Work, REFRESH, STEP)}

    def time(self, action: str, do: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = do()
        self.seconds[str(action)] += time.thread_time() - start
        return result


def typical(passes: Sequence[Timings]) -> Timings:
    """Of each action the median. Not the least: of many short actions it would be less than any epoch ever takes."""
    return [
        {action: statistics.median(t[action] for t in taken) for action in taken[0]}
        for taken in zip(*passes, strict=True)
    ]


def _time_epoch(engine: Engine, optimizer: torch.optim.Optimizer, epoch: int) -> dict[str, float]:
    watch = _Stopwatch()
    order = list(range(engine.slots))

    def begin() -> Freshness:
        freshness = Freshness(engine.shard, order)
        engine.stage.start_epoch(epoch, freshness)
        return freshness

    def end() -> None:
        engine.stage.end_epoch()
        optimizer.step()
        optimizer.zero_grad()

    freshness = watch.time(STEP, begin)
    watch.time(REFRESH, lambda: freshness.prepare(engine.edge_kinds))
    outputs: dict[int, tuple[torch.Tensor, ...]] = {}
    for slot in order:
        rows = engine.shard.inward.rows_of(slot)
        received = tuple(torch.randn(rows.stop - rows.start, width) for width in engine._border_widths_in)
        outputs[slot] = watch.time(Work.FORWARD, partial(engine.stage.forward, slot, received))
    for slot in reversed(order):
        gradients = tuple(torch.ones_like(tensor) for tensor in outputs.pop(slot))
        queue = WeightGradientQueue()
        with defer_weight_gradients(queue):
            watch.time(Work.INPUT_GRADIENT, partial(engine.stage.backward, slot, gradients))
        watch.time(Work.WEIGHT_GRADIENT, queue.run)
    watch.time(STEP, end)
    return watch.seconds
