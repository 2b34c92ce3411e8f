"""From a plan to its forecast: bytes, memory, bubble and time of an epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan, better_cut, default_chunks, make_plan
from gnnpipe_trainer.pipeline.schedule import Work, ideal_bubble, slot_count
from gnnpipe_trainer.pipeline.worth import worth_skipping
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.graphs import Graph
from gnnpipe_trainer.planning.hardware import Hardware
from gnnpipe_trainer.planning.memory import Memory, stage_memory
from gnnpipe_trainer.planning.shape import ModelShape
from gnnpipe_trainer.planning.simulate import Epoch, simulate
from gnnpipe_trainer.planning.volume import Volume, crossing_share, item_bytes, volume, wire_bytes
from gnnpipe_trainer.planning.work import StageWork, seconds, stage_seconds

UPDATE_PASSES = 6  # element-wise results of an optimizer's step, per parameter


@dataclass(frozen=True)
class Forecast:
    """What one epoch of a plan costs."""

    plan: Plan
    volume: Volume
    memory: tuple[Memory, ...]  # by stage: of its fullest rank
    epoch: Epoch
    memory_limit: float | None

    @property
    def seconds(self) -> float:
        """Of an epoch, gradients and weight update included."""
        return self.epoch.seconds

    @property
    def mode(self) -> str:
        if self.plan.ranks == 1:
            return "single"
        if self.plan.stages == 1:
            return "graph"
        return "pipeline" if self.plan.ways == 1 else "hybrid"

    @property
    def peak_bytes(self) -> int:
        return max(memory.total for memory in self.memory)

    @property
    def fits(self) -> bool:
        return self.memory_limit is None or self.peak_bytes <= self.memory_limit

    def as_dict(self) -> dict[str, Any]:
        slots = slot_count(self.plan.stages, self.plan.ways, self.plan.chunks)
        return {
            "mode": self.mode,
            "plan": self.plan.as_dict(),
            "bytesPerEpoch": self.volume.as_dict(),
            "memoryBytes": [memory.total for memory in self.memory for _ in range(self.plan.ways)],
            "fits": self.fits,
            "bubble": {
                "forecast": round(self.epoch.bubble, 4),
                "ideal": round(ideal_bubble(self.plan.stages, slots), 4),
            },
            "epochSeconds": self.seconds,
        }


@dataclass(frozen=True)
class Planner:
    """A job, its graph and the machines it would run on: answers for any plan."""

    job: GNNPipeJob
    shape: ModelShape
    graph: Graph
    hardware: Hardware

    def forecast(self, plan: Plan) -> Forecast:
        cut = self.graph.cut(plan.ways, plan.chunks, plan.stages)
        works = self.stage_works(plan)
        wire = wire_bytes(self.job)
        stages = [dict(stage_seconds(work, cut, self.hardware, wire, plan.ranks)) for work in works]
        sizes = self._message_bytes(plan, cut, wire)
        links = [self.hardware.border(stage, plan.ways) for stage in range(plan.stages - 1)]
        if self.job.spec.parallelism.wire_zeros == "auto":
            busy = max(sum(stage[Work.FORWARD]) + sum(stage[Work.BACKWARD]) for stage in stages)
            travels = [2 * sum(size) / link.bytes_per_second for link, size in zip(links, sizes, strict=True)]
            skips = worth_skipping(max(travels, default=0.0), busy)
            return self._with_zeros("skip" if skips else "send").forecast(plan)
        messages = [[link.seconds(n) for n in border] for link, border in zip(links, sizes, strict=True)]
        self._charge_messages(stages, sizes, messages)
        overlap = self.hardware.overlap
        epoch = simulate(
            stages,
            messages if overlap else [[0.0] * cut.slots for _ in messages],
            ways=plan.ways,
            cores=self.hardware.cores.for_slots(cut.slots),
            split_backward=self.job.spec.parallelism.split_backward,
            prepare=[self.hardware.costs.refresh * work.entries_to_sort_out(cut) for work in works],
            end=[self._end_seconds(plan, stage) for stage in range(plan.stages)],
            epochs=2 if overlap else 1,  # a stage may begin its next epoch while others end theirs
        )
        return Forecast(
            plan,
            volume(self.job, plan, self.shape, cut),
            tuple(
                stage_memory(self.job, plan, self.shape, cut, self.hardware, stage)
                for stage in range(plan.stages)
            ),
            epoch,
            self.hardware.memory_bytes,
        )

    def _with_zeros(self, decided: str) -> Planner:
        """With what `wireZeros: auto` comes to once training has seen its links (pipeline/thrift.py)."""
        parallelism = self.job.spec.parallelism.model_copy(update={"wire_zeros": decided})
        spec = self.job.spec.model_copy(update={"parallelism": parallelism})
        return replace(self, job=self.job.model_copy(update={"spec": spec}))

    def plan(self, stages: int, ways: int, slots: int | None = None) -> Plan:
        """The plan of so many stages and ways, cut as training would; `slots` chunks for each way."""
        chunks = default_chunks(stages, ways) if slots is None else slots * ways
        parallelism = self.job.spec.parallelism.model_copy(
            update={"stages": stages, "ways": ways, "chunks": chunks}
        )
        spec = self.job.spec.model_copy(update={"parallelism": parallelism})
        even = make_plan(self.job.model_copy(update={"spec": spec}))
        if stages == 1:
            return even
        costs = self.layer_seconds(self.graph.cut(ways, chunks, stages))
        return replace(even, layers_per_stage=better_cut(even.layers_per_stage, costs))

    def layer_seconds(self, cut: Cut) -> list[float]:
        """What each layer computes in an epoch; the encoder counts to the first, the decoder to the last."""
        alike: dict[object, float] = {}
        found = []
        for layer, block in enumerate(self.shape.blocks):
            work = self._work(layer, 1)
            kind = (block, layer == 0, tuple(work.ends))
            if kind not in alike:
                amounts = work.all_amounts(cut)
                alike[kind] = sum(float(seconds(a, self.hardware.costs).sum()) for a in amounts)
            found.append(alike[kind])
        return found

    def stage_works(self, plan: Plan) -> list[StageWork]:
        return [
            self._work(plan.first_layer(stage), layers) for stage, layers in enumerate(plan.layers_per_stage)
        ]

    def _work(self, first: int, layers: int) -> StageWork:
        return StageWork(self.shape, first, layers, self.job.spec.parallelism)

    def _message_bytes(self, plan: Plan, cut: Cut, wire: int) -> list[list[float]]:
        """[border][position], of the fullest way"""
        rows = cut.rows.max(axis=0)
        widths = [
            self.shape.blocks[plan.first_layer(stage) - 1].border_width for stage in range(1, plan.stages)
        ]
        share = crossing_share(self.job)
        return [[float(n) * width * wire * share for n in rows] for width in widths]

    def _charge_messages(
        self, stages: list[dict[Work, list[float]]], sizes: list[list[float]], travels: list[list[float]]
    ) -> None:
        """Each message costs its ends something; without overlap, all of its travel."""
        costs = self.hardware.costs
        for border, (size, travel) in enumerate(zip(sizes, travels, strict=True)):
            extra = costs.message + costs.byte * np.asarray(size)
            if not self.hardware.overlap:
                extra = extra + np.asarray(travel)
            for end in (stages[border], stages[border + 1]):
                for work in (Work.FORWARD, Work.INPUT_GRADIENT, Work.BACKWARD):
                    end[work] = list(map(float, np.asarray(end[work]) + extra))

    def _end_seconds(self, plan: Plan, stage: int) -> float:
        """After the last slot: gradients are summed over the ways, weights are updated."""
        parameters = self.shape.parameters(plan.first_layer(stage), plan.layers_per_stage[stage])
        update = self.hardware.costs.epoch + UPDATE_PASSES * parameters * self.hardware.costs.row
        if plan.ways == 1:
            return update
        link = self.hardware.exchange(plan.ways)
        moved = 2 * (plan.ways - 1) / plan.ways * parameters * item_bytes(self.job)
        return update + 2 * (plan.ways - 1) * link.latency_seconds + moved / link.bytes_per_second
