"""The planner's answer: a table for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from gnnpipe_api.plan import Plan
from gnnpipe_trainer.planning.choose import Choice
from gnnpipe_trainer.planning.forecast import Forecast, Planner
from gnnpipe_trainer.planning.hardware import CPU

PLAIN_WIDTH = 150  # of what is not a terminal: a log file does not wrap


def as_dict(planner: Planner, choice: Choice) -> dict[str, Any]:
    graph = planner.graph
    return {
        "job": planner.job.name,
        "graph": {
            "vertices": graph.vertices,
            "edges": graph.edges,
            "features": graph.features,
            "classes": graph.classes,
            "estimatedCut": graph.estimated,
        },
        "hardware": planner.hardware.name,
        "plans": [forecast.as_dict() for forecast in choice.forecasts],
        "recommended": choice.best.as_dict(),
        "reason": choice.reason,
    }


def show(planner: Planner, choice: Choice, manifest: str = "JOB", console: Console | None = None) -> None:
    console = console or Console(width=None if Console().is_terminal else PLAIN_WIDTH, highlight=False)
    graph, hardware = planner.graph, planner.hardware
    console.print(
        f"{planner.job.name}: {graph.vertices:,} vertices, {graph.edges:,} edges, "
        f"{planner.job.spec.model.layers} layers, {choice.best.plan.ranks} ranks on {hardware.name}"
        + (" (cut estimated from the sizes)" if graph.estimated else "")
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("", "mode"):
        table.add_column(name)
    names = (
        "stages",
        "ways",
        "chunks",
        "layers per stage",
        "pipeline",
        "graph",
        "gradient",
        "memory",
        "bubble",
    )
    for name in (*names, "epoch"):
        table.add_column(name, justify="right")
    for forecast in choice.forecasts:
        table.add_row(*_cells(forecast, forecast is choice.best))
    console.print(table)
    console.print("Bytes are per epoch, all ranks together; memory is of the fullest rank.", style="dim")
    console.print(f"Recommended: {choice.reason}")
    console.print(f"  gnnpipe run {manifest} {_settings(choice.best.plan)}", soft_wrap=True)
    cores, ranks = hardware.cores.count, choice.best.plan.ranks
    if cores is not None and ranks > cores:
        console.print(f"The {ranks} ranks take turns on {cores} cores: all of these plans are slower for it.")
    if hardware.name == CPU.name:
        console.print(
            f"Times are of a common CPU; gnnpipe plan {manifest} --calibrate measures this machine."
        )


def _cells(forecast: Forecast, best: bool) -> list[str]:
    plan, moved = forecast.plan, forecast.volume
    return [
        "→" if best else "",
        forecast.mode,
        str(plan.stages),
        str(plan.ways),
        str(plan.chunks),
        layers(plan),
        decimal(moved.pipeline) if moved.pipeline else "-",
        decimal(moved.graph) if moved.graph else "-",
        decimal(moved.gradient) if moved.gradient else "-",
        decimal(forecast.peak_bytes) + ("" if forecast.fits else " too much"),
        f"{100 * forecast.epoch.bubble:.0f}%",
        duration(forecast.seconds),
    ]


def layers(plan: Plan) -> str:
    """4+4+3+3 as 2x4, 2x3: as short as it can be said."""
    counts: dict[int, int] = {}
    for count in plan.layers_per_stage:
        counts[count] = counts.get(count, 0) + 1
    return ", ".join(str(size) if many == 1 else f"{many}x{size}" for size, many in counts.items())


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _settings(plan: Plan) -> str:
    numbers = {"stages": plan.stages, "ways": plan.ways, "chunks": plan.chunks}
    return " ".join(f"--set spec.parallelism.{name}={number}" for name, number in numbers.items())
