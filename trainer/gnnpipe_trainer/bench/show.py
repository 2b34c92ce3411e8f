"""A comparison as people read it: a table in the terminal, a table in Markdown, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from gnnpipe_trainer.pipeline.wire import GRADIENT, GRAPH, PIPELINE

COLUMNS = (
    "mode",
    "s/epoch",
    "x 1 rank",
    "x, CPU time",
    "MB/epoch",
    "by formula",
    "waiting",
    "ideal bubble",
    "peak MB",
)
LEGEND = "MB/epoch: p between stages, g between ways, w weight gradients. Peak MB: per process."
LETTERS = {PIPELINE: "p", GRAPH: "g", GRADIENT: "w"}
COLOURS = {
    "other": "#9d9d9d",
    "one": "#54a24b",
    "pipeline": "#4c78a8",
    "graph": "#f58518",
    "hybrid": "#b279a2",
}
BAR_INCHES = 0.34


def title_of(row: dict[str, Any]) -> str:
    return str(row["name"]) if row["rate"] is None else f"{row['name']}, {row['rate']}"


def cells_of(row: dict[str, Any]) -> list[str]:
    """In the order of COLUMNS."""
    memory = " ".join(f"{peak / 1e6:.0f}" for peak in row["peakMemoryBytes"])
    ratios = ["" if row[key] is None else f"{row[key]:.2f}" for key in ("ratio", "cpuRatio")]
    cells = [title_of(row), f"{row['seconds']['median']:.3f}", *ratios]
    if "bytesPerEpoch" not in row:
        return [*cells, "", "", "", "", memory]
    sent, formula = _by_kind(row["bytesPerEpoch"]), _by_kind(row["formulaBytes"])
    if row.get("zerosSkipped"):
        formula = f"at most {formula}"
    return [*cells, sent, formula, f"{row['waiting']:.1%}", f"{row['idealBubble']:.1%}", memory]


def print_table(results: dict[str, Any], console: Console) -> None:
    graph, model = results["graph"], results["job"]["spec"]["model"]
    table = Table(title=headline(graph, model), title_justify="left", title_style="bold")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "mode" else "right", no_wrap=column == "mode")
    for row in results["modes"]:
        table.add_row(*cells_of(row))
    console.print(table)
    console.print(LEGEND)


def headline(graph: dict[str, Any], model: dict[str, Any]) -> str:
    shape = f"{model['kind']}, {model['layers']} layers, hidden {model.get('hidden', 64)}"
    return f"{shape}; {graph['vertices']:,} vertices, {graph['edges']:,} edges; one thread per rank"


def markdown_table(columns: list[str] | tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] + ["--:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(results: dict[str, Any], path: Path) -> None:
    """Seconds per epoch as bars, longest rows included: the axis is logarithmic."""
    rows = list(reversed(results["modes"]))
    figure = Figure(figsize=(9, 1.2 + BAR_INCHES * len(rows)), layout="constrained")
    chart = figure.add_subplot()
    seconds = [row["seconds"]["median"] for row in rows]
    bars = chart.barh([title_of(row) for row in rows], seconds, color=[COLOURS[_family(row)] for row in rows])
    labels = [_label(row) for row in rows]
    chart.bar_label(bars, labels, padding=3, fontsize=8)
    chart.set_xscale("log")
    chart.set_xlim(min(seconds) / 2, max(seconds) * 6)
    # Of the whole figure: centred over the bars alone, long names push them out of it.
    figure.supxlabel(
        "seconds per epoch (median); megabytes sent per epoch; share of the time spent waiting", fontsize=9
    )
    figure.suptitle(headline(results["graph"], results["job"]["spec"]["model"]), fontsize=10)
    figure.savefig(path, dpi=110)


def _label(row: dict[str, Any]) -> str:
    parts = [f"{row['seconds']['median']:.2f} s"]
    if "bytesPerEpoch" in row:
        parts += [f"{sum(row['bytesPerEpoch'].values()) / 1e6:.1f} MB", f"waiting {row['waiting']:.0%}"]
    return ", ".join(parts)


def _family(row: dict[str, Any]) -> str:
    first = str(row["name"]).split(",")[0]
    return first if first in COLOURS else "one" if first == "1 rank" else "other"


def _by_kind(sent: dict[str, int]) -> str:
    """Megabytes of each kind that there is; see LEGEND."""
    parts = [f"{count / 1e6:.2f} {LETTERS[kind]}" for kind, count in sent.items() if count]
    return " + ".join(parts) or "0"
