"""Small jobs whose actions a calibration times, one by one, by the engine's own code."""

from __future__ import annotations

import time
from collections.abc import Callable
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
from gnnpipe_trainer.pipeline.schedule import Work, slot_order
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups
from gnnpipe_trainer.planning.cut import count_cut
from gnnpipe_trainer.planning.fitting import Amounts, Timings
from gnnpipe_trainer.planning.forecast import UPDATE_PASSES
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.work import StageWork
from gnnpipe_trainer.staleness.figures import StalenessProbe
from gnnpipe_trainer.train import make_optimizer

REFRESH, STEP = "refresh", "step"  # what an epoch has besides F, I and W


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
    stages: int = 2
    gradients: str = "drop"  # `last` sums gradients over all edges, and sorts none out: both ways are timed

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
                    "parallelism": {
                        "stages": self.stages,
                        "chunks": self.chunks,
                        "history": {"gradients": self.gradients},
                    },
                },
            }
        )


# Each holds more than processors cache, as jobs do: smaller ones are a third quicker than what they stand for.
CROWDED_RUN = Run("resgcn", 64, 0.5, 8, 20_000, 12, gradients="last")  # tells how ranks hold each other up
TALKING_RUNS = [  # as pipelines: few large messages, and many small ones
    Run("gcnii", 64, 0.5, 8, 24_000, 20, gradients="last"),
    Run("gcnii", 64, 0.0, 32, 20_000, 12, gradients="last"),
]
RUNS = [
    CROWDED_RUN,
    *TALKING_RUNS,
    Run("gcn", 32, 0.0, 8, 24_000, 40),
    Run("gcn", 128, 0.0, 4, 12_000, 10),
    Run("resgcn", 128, 0.3, 4, 12_000, 10, gradients="last"),
    Run("sage", 64, 0.0, 16, 16_000, 30),
    Run("gat", 32, 0.0, 4, 2_000, 10, layers=2),
    Run("gcnii", 64, 0.5, 1, 24_000, 10, stages=1),  # a single slot is taken without history
    Run("resgcn", 96, 0.3, 1, 12_000, 30, layers=3, stages=1),
]


class Bench:
    """A job in this process, each stage run alone as the engine runs it: it is given all it would receive."""

    def __init__(self, run: Run | GNNPipeJob) -> None:
        self.job = run.job() if isinstance(run, Run) else run
        self.plan = make_plan(self.job)
        self._epochs = 0

    @cached_property
    def graph(self) -> ChunkedGraph:
        return cut(load_graph(self.job.spec.graph, Path()), self.plan.ways, self.plan.chunks)

    def amounts(self) -> Amounts:
        """By stage and action: units of work of all slots."""
        graph, plan = self.graph, self.plan
        chunk_of = np.repeat(np.arange(graph.num_chunks), np.diff(graph.bounds))
        targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
        counted = count_cut(graph.indices.astype(np.int64), targets, chunk_of, plan.ways, plan.chunks)
        shape = built_in_shape(self.job.spec.model, graph.num_features, graph.num_classes)
        found = []
        for stage, layers in enumerate(plan.layers_per_stage):
            first = plan.first_layer(stage)
            work = StageWork(shape, first, layers, self.job.spec.parallelism)
            actions = {
                str(kind): {unit: float(amount.sum()) for unit, amount in amounts.items()}
                for kind, amounts in work.amounts(counted).items()
            }
            actions[REFRESH] = {"refresh": work.entries_to_sort_out(counted)}
            actions[STEP] = {"epoch": 1.0, "row": float(UPDATE_PASSES * shape.parameters(first, layers))}
            found.append(actions)
        return found

    def epoch(self) -> Timings:
        """One epoch of every stage, all slots together; the first one of all is slower, for it warms up."""
        self._epochs += 1
        return [_time_epoch(*stage, self._epochs) for stage in self._stages]

    @cached_property
    def _stages(self) -> list[tuple[Engine, StalenessProbe, torch.optim.Optimizer]]:
        nobody = Groups(*[cast(Any, None)] * 4)  # nothing is sent
        stages = []
        for stage in range(self.plan.stages):
            model = build_model(self.job.spec.model, self.graph.num_features, self.graph.num_classes)
            topology = Topology(self.plan.stages, self.plan.ways, stage * self.plan.ways)
            engine = Engine(self.job, self.plan, self.graph, model, topology, nobody, torch.device("cpu"))
            optimizer = make_optimizer(self.job.spec.training, engine.parameters)
            stages.append((engine, StalenessProbe(engine), optimizer))
        return stages


class _Stopwatch:
    """Processor time by action: other work on the machine disturbs it little."""

    def __init__(self) -> None:
        self.seconds = {str(action): 0.0 for action in (*Work, REFRESH, STEP)}

    def time(self, action: str, do: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = do()
        self.seconds[str(action)] += time.thread_time() - start
        return result


def _time_epoch(
    engine: Engine, probe: StalenessProbe, optimizer: torch.optim.Optimizer, epoch: int
) -> dict[str, float]:
    watch = _Stopwatch()
    order = slot_order(engine.slots, engine.job.spec.training.seed, epoch, shuffle=True)
    slots: list[int | None] = [None] if engine.slots == 1 else list(order)

    def begin() -> Freshness:
        freshness = Freshness(engine.shard, order)
        engine.stage.start_epoch(epoch, freshness)
        return freshness

    def end() -> None:
        engine.stage.end_epoch()
        probe.take(epoch)
        optimizer.step()
        optimizer.zero_grad()

    freshness = watch.time(STEP, begin)
    watch.time(REFRESH, lambda: freshness.prepare(engine.edge_kinds))
    outputs: dict[int | None, tuple[torch.Tensor, ...]] = {}
    for slot in slots:
        rows = engine.shard.inward.rows_of(slot)
        received = tuple(torch.randn(rows.stop - rows.start, width) for width in engine._border_widths_in)
        outputs[slot] = watch.time(Work.FORWARD, partial(engine.stage.forward, slot, received))
    for slot in reversed(slots):
        gradients = tuple(torch.ones_like(tensor) for tensor in outputs.pop(slot))
        backward = partial(engine.stage.backward, slot, gradients)
        if not engine.puts_off_weights:
            watch.time(Work.INPUT_GRADIENT, backward)
            continue
        queue = WeightGradientQueue()
        with defer_weight_gradients(queue):
            watch.time(Work.INPUT_GRADIENT, backward)
        watch.time(Work.WEIGHT_GRADIENT, queue.run)
    watch.time(STEP, end)
    return watch.seconds
