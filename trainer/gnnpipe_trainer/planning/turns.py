"""What ranks lose by taking turns at cores, from a real pipeline of more ranks than cores.

A rank that wakes up for a message finds all cores taken and waits for somebody's time slice to end; then its caches
are cold. How long that is depends on the system's scheduler, so it is measured, not modelled slice by slice: the factor
with which the simulator takes as long as the real pipeline did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.forecast import Planner
from gnnpipe_trainer.planning.hardware import Hardware
from gnnpipe_trainer.planning.runs import TURNS_ON_CORES, turns_run
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.simulate import Cores

MOST = 1.5  # whatever is beyond was taken by other programs: this is the one figure that they disturb
ROUNDS = 5  # nearly proportional: each is ten times closer


@dataclass(frozen=True)
class CountedGraph:
    """A graph of which one cut was counted."""

    counted: Cut
    features: int
    classes: int
    estimated: bool = False

    @property
    def vertices(self) -> int:
        return round(float(self.counted.rows.sum()))

    @property
    def edges(self) -> int:
        return round(float(self.counted.entries.sum()))

    def cut(self, ways: int, chunks: int, stages: int) -> Cut:
        return self.counted


def taking_turns(machine: Hardware, seconds: float, cut: dict[str, list[list[float]]]) -> float:
    """The factor (1 to MOST) on a machine that is known but for it; the pipeline's epoch took so many seconds."""
    assert machine.cores.count is not None
    job = turns_run(machine.cores.count).job()
    spec = job.spec.graph
    counts: dict[str, Any] = {name: np.array(values) for name, values in cut.items()}
    graph = CountedGraph(Cut(**counts), spec.features, spec.classes)
    shape = built_in_shape(job.spec.model, graph.features, graph.classes)
    factor = 1.0
    for _ in range(ROUNDS):
        planner = Planner(job, shape, graph, replace(machine, cores=_pinned(machine.cores, factor)))
        factor = min(MOST, max(1.0, factor * seconds / planner.forecast(make_plan(job)).seconds))
    return factor


def _pinned(cores: Cores, turns: float) -> Cores:
    """The few cores that the pipeline was kept on, while all others had nothing to do."""
    assert cores.count is not None
    count = min(cores.count, TURNS_ON_CORES)
    return Cores(count, 1 / cores.rate(count), turns)
