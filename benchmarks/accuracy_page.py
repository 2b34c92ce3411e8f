"""Tables and pictures of docs/accuracy.md, from the kept lines of the grid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from accuracy_grid import (
    ABLATION_GRAPHS,
    ABLATION_MODELS,
    ABLATION_MODES,
    GRAPHS,
    MODELS,
    MUST_GRAPHS,
    MUST_MODELS,
    Cell,
    must_run,
)
from matplotlib.figure import Figure
from paired import ratio, standard_error

from gnnpipe_trainer.bench.show import markdown_table

Line = dict[str, Any]

BEGIN, END = "<!-- grid: begin, written by benchmarks/accuracy.py -->", "<!-- grid: end -->"
PICTURE = "accuracy.png"
COLOURS = {"exact": "#222222", "pipeline": "#4c78a8", "hybrid": "#f58518"}
POINT = 0.01
SLOWER = 1.1
LEARNS = 1.5  # exact training works where it is so many times as good as guessing


@dataclass(frozen=True)
class Runs:
    """All seeds of one graph, model and mode."""

    by_seed: dict[int, Line]

    @property
    def tests(self) -> list[float]:
        return [line["test"] for line in self.by_seed.values()]

    @property
    def mean(self) -> float:
        return fmean(self.tests)

    def epochs_to(self, exact: Runs) -> list[int | None]:
        """Per seed, epochs until 95% of the best validation accuracy of exact training with that seed."""
        seeds = [seed for seed in self.by_seed if seed in exact.by_seed]
        return [_first_above(self.by_seed[s], 0.95 * exact.by_seed[s]["val"]) for s in seeds]

    def common(self, other: Runs) -> tuple[Runs, Runs]:
        """Both, with the seeds that both have."""
        seeds = sorted(self.by_seed.keys() & other.by_seed.keys())
        return Runs({s: self.by_seed[s] for s in seeds}), Runs({s: other.by_seed[s] for s in seeds})

    def __str__(self) -> str:
        spread = f" ± {100 * stdev(self.tests):.1f}" if len(self.tests) > 1 else ""
        return f"{100 * self.mean:.1f}{spread} ({len(self.tests)})"


Grid = dict[tuple[str, str, str], Runs]


def collect(lines: list[Line]) -> Grid:
    found: dict[tuple[str, str, str], dict[int, Line]] = defaultdict(dict)
    for line in lines:
        cell = Cell.of(line["cell"])
        found[cell.graph, cell.model, cell.mode][cell.seed] = line
    return {key: Runs(dict(sorted(runs.items()))) for key, runs in found.items()}


def write_page(lines: list[Line], in_stages: list[Line], page: Path) -> None:
    grid = collect(lines)
    pictures = page.parent / "images"
    pictures.mkdir(exist_ok=True)
    draw(grid, pictures / PICTURE)
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    part = "\n\n".join([*sections(grid), *_stages(grid, in_stages)])
    page.write_text(f"{before}{BEGIN}\n\n{part}\n\n{END}{after}", encoding="utf-8")


def sections(grid: Grid) -> Iterator[str]:
    wanted = [(cell.graph, cell.model, cell.mode, cell.seed) for cell in must_run()]
    done = sum(key[3] in grid[key[:3]].by_seed for key in wanted if key[:3] in grid)
    yield f"Of the {len(wanted)} cells that the first tables want, {done} have been run."
    for graph in MUST_GRAPHS:
        rows = [row for model in MUST_MODELS if (row := _row(grid, graph, model))]
        if rows:
            header = (
                "model",
                "exact",
                "pipeline",
                "",
                "hybrid",
                "",
                "epochs to 95%",
                "within 1 point",
                "at most 1.1x",
            )
            yield f"### {graph}\n\n{markdown_table(header, rows)}"
    yield f"![Validation accuracy over the epochs](images/{PICTURE})"
    for graph in ABLATION_GRAPHS:
        rows = [[mode, *_ablated(grid, graph, mode)] for mode in ("exact", "pipeline", *ABLATION_MODES)]
        yield f"### One technique at a time ({graph})\n\n{markdown_table(('', *ABLATION_MODELS), rows)}"
    others = list(_others(grid))
    if others:
        header = ("graph", "model", "mode", "test", "against exact", "epochs to 95%", "at most 1.1x")
        yield f"### More cells\n\n{markdown_table(header, others)}"


def _row(grid: Grid, graph: str, model: str) -> list[str] | None:
    exact = grid.get((graph, model, "exact"))
    if exact is None:
        return None
    row, speeds, verdicts = [model, str(exact)], [_epochs(exact, exact)], ["", ""]
    for mode in ("pipeline", "hybrid"):
        runs = grid.get((graph, model, mode))
        row += ["-", ""] if runs is None else [str(runs), _difference(runs, exact)]
        if runs is not None:
            speeds.append(_epochs(runs, exact))
        if mode == "pipeline" and runs is not None:
            verdicts = [_verdict(_within_a_point(runs, exact)), _as_quick(runs, exact)]
    if not _works(graph, exact):
        verdicts = ["exact fails", ""]
    return [*row, " / ".join(speeds), *verdicts]


def _works(graph: str, exact: Runs) -> bool:
    """Whether exact training itself learns something."""
    classes = {"cora": 7, "citeseer": 6, "squirrel": 5, "generated": 16}[graph]
    return exact.mean > LEARNS / classes


def _within_a_point(runs: Runs, exact: Runs) -> bool:
    ours, theirs = runs.common(exact)
    return ours.mean >= theirs.mean - POINT


def _as_quick(runs: Runs, exact: Runs) -> str:
    """Whether every seed got there, on average in time; how many times as late those were that did."""
    ours, theirs = runs.common(exact)
    pairs = list(zip(ours.epochs_to(theirs), theirs.epochs_to(theirs), strict=True))
    known = [(m, b) for m, b in pairs if m is not None and b is not None]
    if not known:
        return _verdict(False)
    times, error = ratio(known)
    return f"{_verdict(len(known) == len(pairs) and times <= SLOWER)} ({times:.2f}{_plus_minus(error, 2)})"


def _difference(runs: Runs, exact: Runs) -> str:
    """`_against`, with its standard error: seeds are compared one by one."""
    ours, theirs = runs.common(exact)
    points = [100 * (a - b) for a, b in zip(ours.tests, theirs.tests, strict=True)]
    return f"{fmean(points):+.1f}{_plus_minus(standard_error(points), 1)}" if points else ""


def _plus_minus(error: float, digits: int) -> str:
    return "" if isnan(error) else f" ± {error:.{digits}f}"


def _against(runs: Runs, exact: Runs) -> str:
    ours, theirs = runs.common(exact)
    return f"{100 * (ours.mean - theirs.mean):+.1f}" if ours.by_seed else ""


def _epochs(runs: Runs, exact: Runs) -> str:
    """The mean over seeds that got there; how many did, where not all."""
    epochs = runs.epochs_to(exact)
    there = [e for e in epochs if e is not None]
    missing = "" if len(there) == len(epochs) else f" ({len(there)} of {len(epochs)})"
    return f"{fmean(there):.0f}{missing}" if there else f"never{missing}"


def _first_above(line: Line, accuracy: float) -> int | None:
    reached = (i for i, value in enumerate(line["validation"]) if value >= accuracy)
    index = next(reached, None)
    return None if index is None else Cell.of(line["cell"]).evaluate_every * (index + 1)


def _ablated(grid: Grid, graph: str, mode: str) -> list[str]:
    cells = []
    for model in ABLATION_MODELS:
        runs, exact = grid.get((graph, model, mode)), grid.get((graph, model, "exact"))
        if runs is None or exact is None:
            cells.append("-")
        else:
            cells.append(str(runs) if mode == "exact" else f"{runs} {_against(runs, exact)}")
    return cells


def _others(grid: Grid) -> Iterator[list[str]]:
    """Cells that no other table shows."""
    for (graph, model, mode), runs in grid.items():
        shown = graph in MUST_GRAPHS and model in MUST_MODELS and mode in COLOURS
        ablation = graph in ABLATION_GRAPHS and model in ABLATION_MODELS and mode in ABLATION_MODES
        if shown or ablation:
            continue
        exact = grid.get((graph, model, "exact"))
        if exact is None:
            yield [graph, model, mode, str(runs), "", "", ""]
            continue
        ours, theirs = runs.common(exact)
        speeds = f"{_epochs(theirs, theirs)} / {_epochs(ours, theirs)}"
        yield [graph, model, mode, str(runs), _difference(runs, exact), speeds, _as_quick(runs, exact)]


def _stages(grid: Grid, in_stages: list[Line]) -> Iterator[str]:
    rows = []
    for line in in_stages:
        cell = Cell.of(line["cell"])
        runs = grid.get((cell.graph, cell.model, cell.mode))
        same = runs.by_seed.get(cell.seed) if runs is not None else None
        beside = ["-", "-"] if same is None else [f"{100 * same['test']:.1f}", str(runs)]
        rows.append([cell.name, f"{100 * line['test']:.1f}", *beside])
    if rows:
        table = markdown_table(("cell", "gnnpipe run", "at once, this seed", "at once, all seeds"), rows)
        yield f"### With real stages\n\n{table}"


def _verdict(met: bool) -> str:
    return "yes" if met else "**no**"


def draw(grid: Grid, path: Path) -> None:
    """Validation accuracy over the epochs, mean of all seeds: a row per graph, a column per model."""
    graphs = [g for g in GRAPHS if any((g, m, "exact") in grid for m in MUST_MODELS)]
    models = [m for m in MODELS if any((g, m, "exact") in grid for g in graphs) and m in MUST_MODELS]
    if not graphs:
        return
    figure = Figure(figsize=(2.3 * len(models), 1.9 * len(graphs) + 0.4), layout="constrained")
    charts = figure.subplots(len(graphs), len(models), squeeze=False)
    for row, graph in enumerate(graphs):
        for column, model in enumerate(models):
            chart = charts[row][column]
            if (graph, model, "exact") not in grid:
                chart.axis("off")  # not run yet: the table has no row either
                continue
            for mode, colour in COLOURS.items():
                if runs := grid.get((graph, model, mode)):
                    _curve(chart, runs, colour, mode)
            chart.tick_params(labelsize=7, length=0)
            chart.spines[["top", "right"]].set_visible(False)
            chart.set_title(f"{graph} {model}", fontsize=8, loc="left")
            chart.grid(axis="y", color="#eeeeee")
    charts[0][0].legend(frameon=False, fontsize=7, loc="lower right")
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _curve(chart: Any, runs: Runs, colour: str, label: str) -> None:
    """Up to the end of the shortest run: a mean over fewer seeds would jump."""
    lines = list(runs.by_seed.values())
    courses, every = [line["validation"] for line in lines], Cell.of(lines[0]["cell"]).evaluate_every
    length = min(map(len, courses))
    values = [100 * fmean(course[i] for course in courses) for i in range(length)]
    chart.plot([every * (i + 1) for i in range(length)], values, color=colour, linewidth=1.1, label=label)
