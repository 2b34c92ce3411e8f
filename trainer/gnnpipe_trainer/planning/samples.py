"""Small jobs whose actions a calibration times, one by one, by the engine's own code."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, cast

import torch

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.linear import WeightGradientQueue, add_weight_gradients, defer_weight_gradients
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.schedule import Work, slot_order
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups
from gnnpipe_trainer.planning.amounts import REFRESH, STEP
from gnnpipe_trainer.planning.fitting import Timings
from gnnpipe_trainer.planning.runs import Run, cut_graph
from gnnpipe_trainer.staleness.figures import StalenessProbe

SETTLING_EPOCHS = 4  # of a single slot, the first ones of which take up to four times as long


class Bench:
    """A job in this process, each stage run alone as the engine runs it: it is given all it would receive."""

    def __init__(self, run: Run | GNNPipeJob, graph: ChunkedGraph | None = None) -> None:
        self.job = run.job() if isinstance(run, Run) else run
        self.plan = make_plan(self.job)
        self._graph = graph
        self._epochs = 0
        self._stages: dict[int, tuple[Engine, StalenessProbe, torch.optim.Optimizer]] = {}

    @property
    def first_epochs(self) -> int:
        """How many are slower than those to come: a single slot's heap must fit all its tensors at once."""
        return SETTLING_EPOCHS if self.plan.stages == 1 else 1

    @cached_property
    def graph(self) -> ChunkedGraph:
        return self._graph or cut_graph(self.job)

    def epoch(self, stage: int) -> Timings:
        """One epoch of one stage, all slots together."""
        self._epochs += 1
        if stage not in self._stages:
            self._stages[stage] = self._make(stage)
        return {str(stage): _time_epoch(*self._stages[stage], self._epochs)}

    def _make(self, stage: int) -> tuple[Engine, StalenessProbe, torch.optim.Optimizer]:
        nobody = Groups(*[cast(Any, None)] * 4)  # nothing is sent
        model = build_model(self.job.spec.model, self.graph.num_features, self.graph.num_classes)
        topology = Topology(self.plan.stages, self.plan.ways, stage * self.plan.ways)
        engine = Engine(self.job, self.plan, self.graph, model, topology, nobody, torch.device("cpu"))
        optimizer = make_optimizer(self.job.spec.training, engine.parameters)
        return engine, StalenessProbe(engine), optimizer


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
        received = tuple(torch.randn(rows.stop - rows.start, width) for width in engine.widths_in)
        outputs[slot] = watch.time(Work.FORWARD, partial(engine.stage.forward, slot, received))
    put_off: dict[int, WeightGradientQueue] = {}
    for action in engine.schedule:
        if action.move is not None or action.work is Work.FORWARD:
            continue
        if action.work is Work.WEIGHT_GRADIENT:
            watch.time(action.work, put_off[action.position].run)
            continue
        slot = slots[action.position]
        gradients = tuple(torch.ones_like(tensor) for tensor in outputs.pop(slot))
        backward = partial(engine.stage.backward, slot, gradients)
        if action.work is Work.BACKWARD:
            with add_weight_gradients():
                watch.time(action.work, backward)
            continue
        put_off[action.position] = WeightGradientQueue()
        with defer_weight_gradients(put_off[action.position]):
            watch.time(action.work, backward)
    watch.time(STEP, end)
    return watch.seconds
