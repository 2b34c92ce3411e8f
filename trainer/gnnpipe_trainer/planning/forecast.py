"""From a plan to its forecast: bytes, memory, bubble and time of an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan, default_chunks, make_plan
from gnnpipe_trainer.pipeline.schedule import Work, ideal_bubble, slot_count
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.graphs import Graph
from gnnpipe_trainer.planning.hardware import Hardware
from gnnpipe_trainer.planning.memory import Memory, stage_memory
from gnnpipe_trainer.planning.shape import ModelShape
from gnnpipe_trainer.planning.simulate import Epoch, simulate
from gnnpipe_trainer.planning.volume import Volume, item_bytes, volume, wire_bytes
from gnnpipe_trainer.planning.work import StageWork, stage_seconds


@dataclass(frozen=True)
class Forecast:
    """What one epoch of a plan costs."""

    plan: Plan
    volume: Volume
    memory: tuple[Memory, ...]  # by stage: of its fullest rank
    epoch: Epoch
    seconds: float  # the epoch, gradients and weight update included
    memory_limit: float | None

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
        works = self._stage_works(plan)
        wire = wire_bytes(self.job)
        stages = [dict(stage_seconds(work, cut, self.hardware, wire)) for work in works]
        messages = self._message_seconds(plan, cut, wire)
        self._charge_messages(stages, messages)
        in_flight = messages if self.hardware.overlap else [[0.0] * cut.slots for _ in messages]
        epoch = simulate(
            stages,
            in_flight,
            ways=plan.ways,
            cores=self.hardware.cores,
            split_backward=self.job.spec.parallelism.split_backward,
        )
        return Forecast(
            plan,
            volume(self.job, plan, self.shape, cut),
            tuple(
                stage_memory(self.job, plan, self.shape, cut, self.hardware, stage)
                for stage in range(plan.stages)
            ),
            epoch,
            epoch.seconds + self._end_seconds(plan),
            self.hardware.memory_bytes,
        )

    def plan(self, stages: int, ways: int, slots: int | None = None) -> Plan:
        """The plan of so many stages and ways, cut as training would; `slots` chunks for each way."""
        chunks = default_chunks(stages, ways) if slots is None else slots * ways
        parallelism = self.job.spec.parallelism.model_copy(
            update={"stages": stages, "ways": ways, "chunks": chunks}
        )
        spec = self.job.spec.model_copy(update={"parallelism": parallelism})
        return make_plan(self.job.model_copy(update={"spec": spec}))

    def _stage_works(self, plan: Plan) -> list[StageWork]:
        parallelism = self.job.spec.parallelism
        return [
            StageWork(
                self.shape,
                plan.first_layer(stage),
                layers,
                parallelism.history.mode,
                parallelism.split_backward,
                parallelism.recompute,
            )
            for stage, layers in enumerate(plan.layers_per_stage)
        ]

    def _message_seconds(self, plan: Plan, cut: Cut, wire: int) -> list[list[float]]:
        """[border][position]"""
        link = self.hardware.border(plan.stages, plan.ways)
        rows = cut.rows.max(axis=0)
        return [
            [
                link.seconds(float(n) * self.shape.blocks[plan.first_layer(stage) - 1].border_width * wire)
                for n in rows
            ]
            for stage in range(1, plan.stages)
        ]

    def _charge_messages(self, stages: list[dict[Work, list[float]]], messages: list[list[float]]) -> None:
        """Each message costs its ends something; without overlap, all of its travel."""
        fixed = self.hardware.costs.message
        for border, travel in enumerate(messages):
            for end in (stages[border], stages[border + 1]):
                for work in (Work.FORWARD, Work.INPUT_GRADIENT):
                    extra = np.asarray(travel) if not self.hardware.overlap else np.zeros(len(travel))
                    end[work] = list(map(float, np.asarray(end[work]) + extra + fixed))

    def _end_seconds(self, plan: Plan) -> float:
        """After the last slot: gradients are summed over the ways, weights are updated."""
        most = max(
            self.shape.parameters(plan.first_layer(stage), layers)
            for stage, layers in enumerate(plan.layers_per_stage)
        )
        update = self.hardware.costs.epoch + 6 * most * self.hardware.costs.row
        if plan.ways == 1:
            return update
        link = self.hardware.exchange(plan.ways)
        moved = 2 * (plan.ways - 1) / plan.ways * most * item_bytes(self.job)
        return update + 2 * (plan.ways - 1) * link.latency_seconds + moved / link.bytes_per_second
