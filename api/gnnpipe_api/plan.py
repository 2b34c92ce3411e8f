"""From a job to its numbers: stages, ways, chunks, and which layers lie on which stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnnpipe_api.job import GNNPipeJob

CHUNKS_PER_RANK = 4
_MOST_AUTO_STAGES = 4
_LAYERS_PER_AUTO_STAGE = 4


@dataclass(frozen=True)
class Plan:
    """The numbers of one job, with nothing left to "auto"."""

    stages: int
    ways: int
    chunks: int
    layers_per_stage: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return self.stages * self.ways

    def first_layer(self, stage: int) -> int:
        """Index of the stage's first layer, 0-based."""
        return sum(self.layers_per_stage[:stage])

    def as_dict(self) -> dict[str, Any]:
        """As in result.json and in the job's status."""
        return {
            "stages": self.stages,
            "ways": self.ways,
            "chunks": self.chunks,
            "layersPerStage": list(self.layers_per_stage),
        }


ResolveAuto = Callable[[GNNPipeJob], tuple[int, int]]


def resolve_auto(job: GNNPipeJob) -> tuple[int, int]:
    """(stages, ways) with "auto" replaced by a rule that knows only the manifest.

    Four layers or more per stage keep a stage's work well above the cost of its border; without a look at the
    machines more than four stages would be a guess.
    """
    asked = job.spec.parallelism
    layers = job.spec.model.layers
    auto_stages = max(1, min(_MOST_AUTO_STAGES, layers // _LAYERS_PER_AUTO_STAGE))
    stages = auto_stages if asked.stages == "auto" else asked.stages
    ways = 1 if asked.ways == "auto" else asked.ways
    return stages, ways


def default_chunks(stages: int, ways: int) -> int:
    """Four chunks per rank fill a pipeline well; one stage has nothing to fill and stays exact with one
    per way."""
    return ways if stages == 1 else CHUNKS_PER_RANK * stages * ways


def make_plan(
    job: GNNPipeJob, layer_costs: Sequence[float] | None = None, resolve: ResolveAuto = resolve_auto
) -> Plan:
    """The plan of a valid job. `layer_costs` are relative costs per layer; without them all cost the
    same."""
    stages, ways = resolve(job)
    asked_chunks = job.spec.parallelism.chunks
    chunks = default_chunks(stages, ways) if asked_chunks in (None, "auto") else int(asked_chunks)
    costs = [1.0] * job.spec.model.layers if layer_costs is None else layer_costs
    return Plan(stages, ways, chunks, cut_layers(costs, stages))


def cut_layers(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Cut layers into consecutive stages: each takes layers until it has its share of the remaining cost.

    Every stage gets at least one layer, whatever the costs.
    """
    if len(costs) < stages:
        raise ValueError(f"{stages} stages need at least {stages} layers, got {len(costs)}")
    cut: list[int] = []
    first = 0
    for stage in range(stages):
        stages_after = stages - stage - 1
        most = len(costs) - first - stages_after
        share = sum(costs[first:]) / (stages_after + 1)
        taken = 1
        while taken < most and (stages_after == 0 or sum(costs[first : first + taken]) < share):
            taken += 1
        cut.append(taken)
        first += taken
    return tuple(cut)
