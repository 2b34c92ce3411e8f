"""Staleness as each rank measures it in an epoch, and as rank 0 tells it in a line of epochs.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.gather import WeightedSum
from gnnpipe_trainer.staleness.advice import OSCILLATES_BELOW, oscillation_advice
from gnnpipe_trainer.staleness.oscillation import BUCKETS, Sketch, Window
from gnnpipe_trainer.staleness.share import StaleShare

Drift = tuple[
    float, float
]  # squared norms: of (fresh - served), and of fresh; (0, 0) where there is no history


@dataclass(frozen=True)
class RankStaleness:
    """One rank's in one epoch."""

    stale_weight: float = 0.0  # of the edges that its rows read from history
    edge_weight: float = 0.0  # of all edges that its rows read
    drifts: tuple[Drift, ...] = ()  # block by block
    sketch: tuple[float, ...] = field(default=(0.0,) * BUCKETS)  # of its gradient

    @property
    def drift(self) -> float | None:
        """Over all blocks of the rank."""
        return relative(*summed(self.drifts))

    @property
    def block_drifts(self) -> list[float | None]:
        return [relative(*drift) for drift in self.drifts]

    def row(self, blocks: int) -> list[float]:
        """As it is sent; ranks may have fewer blocks than others."""
        drifts = [number for drift in self.drifts for number in drift]
        return [
            self.stale_weight,
            self.edge_weight,
            *self.sketch,
            *drifts,
            *[0.0] * (2 * blocks - len(drifts)),
        ]

    @staticmethod
    def of_row(row: list[float], blocks: int) -> RankStaleness:
        numbers = row[2 + BUCKETS :]
        drifts = tuple((numbers[2 * b], numbers[2 * b + 1]) for b in range(blocks))
        return RankStaleness(row[0], row[1], drifts, tuple(row[2 : 2 + BUCKETS]))


class StalenessProbe:
    """Measures on one rank, after each epoch and before its optimizer step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sketch = Sketch(engine.parameters if engine.topology.way == 0 else [])
        kinds = [gather.kind for gather in engine.stage.gathers if isinstance(gather, WeightedSum)]
        self._share = StaleShare(engine.shard, kinds[0] if kinds else None) if engine.slots > 1 else None

    def expected_share(self, control: dist.ProcessGroup) -> float:
        """Of the whole job's edge weight, on average over the epochs."""
        weights = torch.tensor(
            (0.0, 0.0) if self._share is None else self._share.expect(), dtype=torch.float64
        )
        dist.all_reduce(weights, group=control)
        return float(weights[0] / weights[1]) if weights[1] > 0 else 0.0

    def weigh(self, epoch: int) -> tuple[float, float]:
        """The weight of edges that read history in this epoch, and of all edges; of this rank's rows."""
        if self._share is None:
            return 0.0, 0.0
        return self._share.weigh(self._engine.slot_order(epoch))

    def take(self, epoch: int) -> RankStaleness:
        histories = [gather.history for gather in self._engine.stage.gathers]
        drifts = tuple((0.0, 0.0) if history is None else history.take_drift() for history in histories)
        return RankStaleness(*self.weigh(epoch), drifts, tuple(self._sketch.take()))


class JobStaleness:
    """The whole job's, on rank 0; warns once when training swings because of history."""

    def __init__(self, job: GNNPipeJob, plan: Plan) -> None:
        self._job, self._plan = job, plan
        self.window = Window()
        self._warned = False

    def line(self, ranks: Sequence[RankStaleness], warn: Callable[[str], None]) -> dict[str, Any]:
        """What an epoch's line says about it."""
        self.window.add([rank.sketch for rank in ranks])
        edges = sum(rank.edge_weight for rank in ranks)
        share = sum(rank.stale_weight for rank in ranks) / edges if edges else 0.0
        oscillation = self.window.oscillation()
        told: dict[str, Any] = {
            "drift": relative(*summed(summed(rank.drifts) for rank in ranks)),
            "driftPerBlock": self._per_block(ranks),
            "staleShare": _rounded(share),
            "oscillation": _rounded(oscillation),
        }
        if oscillation is not None and oscillation < OSCILLATES_BELOW and share > 0 and not self._warned:
            self._warned = True
            warn(oscillation_advice(self._job, oscillation, share))
        return told

    def saved(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"gradients": self.window.saved(), "warned": self._warned}

    def restore(self, saved: dict[str, Any] | None) -> None:
        self.window.restore(saved["gradients"] if saved else [])
        self._warned = bool(saved and saved["warned"])

    def _per_block(self, ranks: Sequence[RankStaleness]) -> list[float | None]:
        """Drift of every block of the model, over all ways of its stage."""
        found: list[float | None] = []
        for stage, blocks in enumerate(self._plan.layers_per_stage):
            ways = ranks[stage * self._plan.ways : (stage + 1) * self._plan.ways]
            for block in range(blocks):
                found.append(_rounded(relative(*summed(way.drifts[block] for way in ways))))
        return found


def summed(drifts: Iterable[Drift]) -> Drift:
    difference = magnitude = 0.0
    for one in drifts:
        difference, magnitude = difference + one[0], magnitude + one[1]
    return difference, magnitude


def relative(difference: float, magnitude: float) -> float | None:
    """The relative distance from squared norms; None where there was nothing to compare with."""
    return math.sqrt(difference / magnitude) if magnitude > 0 else None


def _rounded(number: float | None) -> float | None:
    """Four digits are more than these estimates are good for."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.4g}")
