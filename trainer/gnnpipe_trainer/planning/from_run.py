"""Hardware as a finished run shows it: the same machines, with compute and links scaled to what its epochs took."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gnnpipe_api.plan import Plan
from gnnpipe_trainer.planning.forecast import Forecast, Planner
from gnnpipe_trainer.planning.hardware import Costs, Hardware, Link

WARMUP_EPOCHS = 2  # as in report.py, which needs torch to be read
WIDEST = 1000.0  # a link may be so many times slower or quicker than it was thought to be
STEPS = 40


class NoRun(ValueError):
    """The folder tells nothing about this job; the sentence says why."""


@dataclass(frozen=True)
class Run:
    """What a finished run tells."""

    plan: Plan
    seconds: float  # of an epoch, the median
    idle: float  # share of the ranks' time

    @property
    def busy_seconds(self) -> float:
        return self.seconds * (1 - self.idle) * self.plan.ranks


def read_run(folder: Path, job: str, layers: int) -> Run:
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        raise NoRun(
            f"--from-run: there is no finished run in {folder}; name the --out folder of one"
        ) from None
    plan = result["plan"]
    if result["job"] != job or sum(plan["layersPerStage"]) != layers:
        raise NoRun(
            f"--from-run: {folder} holds a run of {result['job']} with {sum(plan['layersPerStage'])} layers, "
            f"not of {job} with {layers}; name a run of this job"
        )
    warm = lines[WARMUP_EPOCHS:] or lines
    return Run(
        Plan(plan["stages"], plan["ways"], plan["chunks"], tuple(plan["layersPerStage"])),
        statistics.median(line["seconds"] for line in warm),
        statistics.median(statistics.mean(line["idle"]) for line in warm),
    )


def fit_to_run(planner: Planner, run: Run, folder: Path) -> Planner:
    """The planner whose forecast of this run agrees with what it took.

    What ranks computed says how quick they are; what they waited beyond that, how quick the link is. With several
    ways waits for swapped rows lie inside the work, so there the whole epoch says how quick ranks are.
    """
    alone = run.plan.ways == 1
    target = run.busy_seconds if alone else run.seconds
    for _ in range(4):  # nearly linear: each round is ten times closer
        ours = planner.forecast(run.plan)
        factor = target / (_busy_seconds(ours) if alone else ours.seconds)
        planner = _on(planner, _scaled_costs(planner.hardware, factor))
    if alone and run.plan.ranks > 1:
        before = planner.hardware

        def seconds(slower: float) -> float:
            return _on(planner, _slower_links(before, slower)).forecast(run.plan).seconds

        planner = _on(planner, _slower_links(before, _where(seconds, run.seconds)))
    return _on(planner, replace(planner.hardware, name=f"{planner.hardware.name}, fitted to {folder}"))


def _where(rising: Callable[[float], float], value: float) -> float:
    """The factor at which a function that never falls takes this value; 1 where it does not depend on it."""
    low, high = 1 / WIDEST, WIDEST
    if rising(low) >= value:
        return 1.0 if rising(1.0) <= value * 1.01 else low
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return low


def _on(planner: Planner, hardware: Hardware) -> Planner:
    return replace(planner, hardware=hardware)


def _busy_seconds(forecast: Forecast) -> float:
    return forecast.seconds * (1 - forecast.epoch.bubble) * forecast.plan.ranks


def _scaled_costs(hardware: Hardware, factor: float) -> Hardware:
    return replace(
        hardware, costs=Costs(**{unit: cost * factor for unit, cost in asdict(hardware.costs).items()})
    )


def _slower_links(hardware: Hardware, factor: float) -> Hardware:
    def slower(link: Link) -> Link:
        return Link(link.bytes_per_second / factor, link.latency_seconds * factor)

    swapping = hardware.swapping and slower(hardware.swapping)
    return replace(hardware, near=slower(hardware.near), far=slower(hardware.far), swapping=swapping)
