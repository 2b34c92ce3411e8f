"""The planner's answer as a picture: the recommended pipeline at work, and where the modes cross."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gnnpipe_trainer.draw import figure_of, save
from gnnpipe_trainer.planning.choose import Choice, candidates
from gnnpipe_trainer.planning.forecast import Planner
from gnnpipe_trainer.planning.graphs import SizedGraph
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.show import duration

MOST_ROWS = 16  # of the Gantt chart: more stages are too thin to see
GPU_COUNTS = (1, 2, 4, 8, 16, 32)
DEPTHS = (4, 8, 16, 32, 64)
MODES = {"pipeline": "#4c78a8", "hybrid": "#f58518", "graph": "#54a24b"}


def plot(planner: Planner, choice: Choice, path: Path) -> None:
    """A PNG (or SVG, by the path's ending): the quickest pipeline's epoch, and two charts of crossovers."""
    piped = [forecast for forecast in choice.forecasts if forecast.plan.stages > 1] or [choice.best]
    shown = choice.best if choice.best.plan.stages > 1 else min(piped, key=lambda forecast: forecast.seconds)
    rows = shown.epoch.rows[:MOST_ROWS]
    title = (
        f"{shown.mode}, {shown.plan.stages} stages of {shown.plan.ways}, {shown.plan.chunks} chunks: "
        f"{duration(shown.seconds)} per epoch"
    )
    figure = figure_of([(rows, title)])
    save(figure, path)
    if planner.job.spec.model.is_built_in:
        save(_crossovers(planner, choice.best.plan.ranks), path.with_stem(f"{path.stem}-crossover"))


def crossover_by_gpus(planner: Planner) -> dict[str, list[tuple[int, float]]]:
    """Seconds per epoch of each mode's best plan, over the number of GPUs."""
    return _by_mode({gpus: (_by_sizes(planner, planner.job.spec.model.layers), gpus) for gpus in GPU_COUNTS})


def crossover_by_depth(planner: Planner, gpus: int) -> dict[str, list[tuple[int, float]]]:
    """The same over the number of layers."""
    return _by_mode({layers: (_by_sizes(planner, layers), gpus) for layers in DEPTHS})


def _by_mode(points: dict[int, tuple[Planner, int]]) -> dict[str, list[tuple[int, float]]]:
    curves: dict[str, list[tuple[int, float]]] = {mode: [] for mode in MODES}
    for where, (planner, gpus) in points.items():
        best: dict[str, float] = {}
        for plans in candidates(planner, gpus):
            forecast = planner.forecast(plans[len(plans) // 2])
            mode = "graph" if forecast.mode == "single" else forecast.mode
            best[mode] = min(best.get(mode, float("inf")), forecast.seconds)
        for mode, seconds in best.items():
            curves[mode].append((where, seconds))
    return curves


def _by_sizes(planner: Planner, layers: int) -> Planner:
    """The same job of another depth on a graph of the same sizes: curves need many cuts, METIS would take long."""
    graph = planner.graph
    sized = SizedGraph(graph.vertices, graph.edges, graph.features, graph.classes)
    model = planner.job.spec.model.model_copy(update={"layers": layers})
    spec = planner.job.spec.model_copy(update={"model": model})
    job = planner.job.model_copy(update={"spec": spec})
    return replace(planner, job=job, graph=sized, shape=built_in_shape(model, graph.features, graph.classes))


def _gpus(planner: Planner) -> str:
    """What lies under the curves' jump: beyond one machine, ways talk over the network."""
    together = planner.hardware.ranks_per_machine
    return f"GPUs, {together} in a machine" if together < max(GPU_COUNTS) else "ranks"


def _crossovers(planner: Planner, gpus: int) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    charts = (
        (left, crossover_by_gpus(planner), f"{planner.job.spec.model.layers} layers", _gpus(planner)),
        (right, crossover_by_depth(planner, gpus), f"{gpus} GPUs", "layers"),
    )
    for chart, curves, title, axis in charts:
        for mode, points in curves.items():
            if points:
                chart.plot(*zip(*points, strict=True), marker="o", color=MODES[mode], label=mode)
        chart.set_xscale("log", base=2)
        where = sorted({x for points in curves.values() for x, _ in points})
        chart.set_xticks(where, [str(x) for x in where])
        chart.set(yscale="log", xlabel=axis, ylabel="seconds per epoch, forecast")
        chart.set_title(title, loc="left", fontsize=10)
        chart.legend(frameon=False)
    return figure
