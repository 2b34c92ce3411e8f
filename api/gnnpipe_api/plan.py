"""From a job to its numbers: stages, ways, chunks, and which layers lie on which stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gnnpipe_api.job import GNNPipeJob, ParallelismSpec
from gnnpipe_api.load import parse_job

CHUNKS_PER_RANK = 4
AUTO_RANKS = 4  # that auto takes at most on a cluster where spec.parallelism.maxRanks says nothing
_MOST_AUTO_STAGES = 4
_LAYERS_PER_AUTO_STAGE = 4
WORTH_AN_UNEVEN_CUT = (
    0.9  # another cut than the even one must make the slowest stage at least this much quicker
)


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

    def in_words(self) -> str:
        return f"stages {self.stages}, ways {self.ways}, chunks {self.chunks}"

    def as_dict(self) -> dict[str, Any]:
        """As in result.json and in the job's status."""
        return {
            "stages": self.stages,
            "ways": self.ways,
            "chunks": self.chunks,
            "layersPerStage": list(self.layers_per_stage),
        }


def resolve_auto(job: GNNPipeJob) -> tuple[int, int]:
    """(stages, ways) with "auto" replaced by a guess that knows only the manifest. Nothing trains by it: before a
    job starts, the planner looks at the graph and `with_numbers` puts its answer into the job.

    Four layers or more per stage keep a stage's work well above the cost of its border; without a look at the
    machines more than four stages would be a guess.
    """
    asked = job.spec.parallelism
    ways = 1 if asked.ways == "auto" else asked.ways
    room = _MOST_AUTO_STAGES if asked.max_ranks is None else asked.max_ranks // ways
    guess = max(1, min(_MOST_AUTO_STAGES, room, job.spec.model.layers // _LAYERS_PER_AUTO_STAGE))
    return (guess if asked.stages == "auto" else asked.stages), ways


def most_ranks(asked: ParallelismSpec) -> int:
    """How many ranks auto may take on a cluster, where nobody can count the GPUs that are free."""
    return asked.max_ranks or max(AUTO_RANKS, asked.fixed_ranks)


def with_numbers(job: GNNPipeJob, stages: int, ways: int, chunks: int) -> GNNPipeJob:
    """The same job with a planner's numbers in place of every auto. Raises ValueError where the numbers are not
    what the manifest leaves open."""
    asked = job.spec.parallelism
    planned = {"stages": stages, "ways": ways, "chunks": chunks}
    for name, number in planned.items():
        if getattr(asked, name) not in ("auto", number) and not (name == "chunks" and asked.chunks is None):
            raise ValueError(f"{name} {number} were planned, but the manifest says {getattr(asked, name)}")
    parallelism = asked.model_copy(update=planned)
    settled = job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})
    return parse_job(settled.manifest())


def default_chunks(stages: int, ways: int) -> int:
    """Four chunks per rank fill a pipeline well; one stage has nothing to fill and stays exact with one
    per way."""
    return ways if stages == 1 else CHUNKS_PER_RANK * stages * ways


def make_plan(job: GNNPipeJob, layer_costs: Sequence[float] | None = None) -> Plan:
    """The plan of a valid job. `layer_costs` are relative costs per layer; without them all cost the
    same."""
    stages, ways = resolve_auto(job)
    asked_chunks = job.spec.parallelism.chunks
    chunks = default_chunks(stages, ways) if asked_chunks in (None, "auto") else int(asked_chunks)
    costs = [1.0] * job.spec.model.layers if layer_costs is None else layer_costs
    return Plan(stages, ways, chunks, cut_layers(costs, stages))


def cut_layers(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Cut layers into consecutive stages so that the slowest stage is as quick as it can be.

    Within that, each stage takes layers until it has its share of the remaining cost. Every stage gets at least one
    layer, whatever the costs.
    """
    if len(costs) < stages:
        raise ValueError(f"{stages} stages need at least {stages} layers, got {len(costs)}")
    limit = _least_slowest(costs, stages)
    cut: list[int] = []
    first = 0
    for stages_after in reversed(range(stages)):
        most = len(costs) - first - stages_after
        share = sum(costs[first:]) / (stages_after + 1)
        taken = 1
        while taken < most and (
            stages_after == 0
            or _stages_needed(costs[first + taken :], limit) > stages_after
            or (sum(costs[first : first + taken]) < share and sum(costs[first : first + taken + 1]) <= limit)
        ):
            taken += 1
        cut.append(taken)
        first += taken
    return tuple(cut)


def better_cut(even: tuple[int, ...], costs: Sequence[float]) -> tuple[int, ...]:
    """The even cut, unless cutting by cost makes the slowest stage clearly quicker: costs are never quite exact."""
    by_cost = cut_layers(costs, len(even))
    return (
        by_cost if slowest_stage(by_cost, costs) < WORTH_AN_UNEVEN_CUT * slowest_stage(even, costs) else even
    )


def slowest_stage(cut: Sequence[int], costs: Sequence[float]) -> float:
    """The cost of the stage that costs most."""
    ends = list(accumulate(cut))
    return max(sum(costs[end - layers : end]) for end, layers in zip(ends, cut, strict=True))


def _least_slowest(costs: Sequence[float], stages: int) -> float:
    """What the slowest stage of the best cut costs, rounded up a little."""
    low, high = max(costs), sum(costs)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _stages_needed(costs, middle) <= stages else (middle, high)
    return high


def _stages_needed(costs: Sequence[float], limit: float) -> int:
    """How many stages of at most this cost the layers fill, one after the other."""
    stages, filled = min(1, len(costs)), 0.0
    for cost in costs:
        filled += cost
        if filled > limit:
            stages, filled = stages + 1, cost
    return stages
