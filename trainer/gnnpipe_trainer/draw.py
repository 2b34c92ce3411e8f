"""Pictures of a pipeline at work: a row per rank, a bar per slot, gaps where a rank waits.

`python -m gnnpipe_trainer.draw docs/images/pipeline.svg` draws the one of the README, from the real schedule.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gnnpipe_trainer.pipeline.schedule import Work
from gnnpipe_trainer.planning.simulate import EQUAL_COSTS, play
from gnnpipe_trainer.timeline import Row, Span, idle_share, is_work, makespan

COLOURS = {
    Work.FORWARD: "#4c78a8",
    Work.INPUT_GRADIENT: "#f58518",
    Work.WEIGHT_GRADIENT: "#54a24b",
    Work.BACKWARD: "#e45756",
}
MEANINGS = {
    Work.FORWARD: "forward",
    Work.INPUT_GRADIENT: "input gradient",
    Work.WEIGHT_GRADIENT: "weight gradient",
    Work.BACKWARD: "both",
}
IDLE, TRANSFER, OTHER = "#eeeeee", "#b279a2", "#9d9d9d"
ROW_INCHES = 0.5
OUTLINED_SHARE = 0.003  # of the picture's width: the outline of narrower bars would cover them
LABELLED_SHARE = 0.016  # of the picture's width: narrower bars have no room for their name
SAME_FILE: dict[Any, Any] = {
    "svg.hashsalt": "gnnpipe",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
}  # each time it is drawn


def draw_schedule(
    path: Path,
    stages: int,
    slots: int,
    split_backward: bool = True,
    costs: Mapping[Work, float] = EQUAL_COSTS,
) -> None:
    """One epoch as it would run if every slot took the same time; PNG or SVG by the path's ending."""
    rows = play(stages, slots, split_backward, costs)
    save(figure_of([(rows, f"{stages} stages, {slots} chunks: {_idle(rows)}")]), path)


def draw_run(path: Path, real: Sequence[Row], ideal: Sequence[Row], title: str, label: str = "rank") -> None:
    """An epoch as it really ran, above the ideal one; both on the same scale, in seconds."""
    panels = [
        (list(real), f"{title}: {_milliseconds(real)}, {_idle(real)}"),
        (
            list(ideal),
            f"the same work, evenly spread, sent in no time: {_milliseconds(ideal)}, {_idle(ideal)}",
        ),
    ]
    figure = figure_of(panels, label)
    longest = max(makespan(rows) for rows, _ in panels)
    for chart in figure.axes:
        chart.set_xlim(0, longest)
    save(figure, path)


def figure_of(panels: Sequence[tuple[list[Row], str]], label: str = "stage") -> Figure:
    """A chart per panel, one above the other; each has the width of its own epoch."""
    heights = [len(rows) for rows, _ in panels]
    figure = Figure(figsize=(11, ROW_INCHES * sum(heights) + 0.55 * len(panels) + 0.45), layout="constrained")
    charts = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for chart, (rows, title) in zip(charts, panels, strict=True):
        _draw_rows(chart, rows, label)
        chart.set_title(title, loc="left", fontsize=10)
    charts[-1].set_xlabel("time →", loc="left", fontsize=9)
    figure.legend(handles=_legend(panels), loc="outside lower right", ncols=6, frameon=False, fontsize=9)
    return figure


def save(figure: Figure, path: Path) -> None:
    """The same picture gives the same file: no date, no random names."""
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(SAME_FILE):
        figure.savefig(path, dpi=150, metadata=metadata)


def _draw_rows(chart: Any, rows: list[Row], label: str) -> None:
    first = min((span.start for row in rows for span in row), default=0.0)
    width = makespan(rows)
    for number, row in enumerate(rows):
        chart.barh(number, width, left=0, height=0.8, color=IDLE)  # what no bar covers is idle
        for span in sorted(row, key=is_work, reverse=True):  # waits inside of work lie on top of it
            _draw_span(chart, number, span, first, width)
    chart.set_yticks(range(len(rows)), [f"{label} {number}" for number in range(len(rows))])
    chart.invert_yaxis()
    chart.set_xlim(0, width)
    chart.set_xticks([])
    chart.tick_params(length=0)
    chart.spines[:].set_visible(False)


def _draw_span(chart: Any, number: int, span: Span, first: float, width: float) -> None:
    left = span.start - first
    work = is_work(span)
    height = 0.8 if work else 0.4
    line = 0.5 if span.seconds > OUTLINED_SHARE * width else 0.0
    chart.barh(
        number, span.seconds, left=left, height=height, color=_colour(span), edgecolor="white", linewidth=line
    )
    if work and span.seconds > LABELLED_SHARE * width:
        chart.text(
            left + span.seconds / 2,
            number,
            span.name[1:],
            ha="center",
            va="center",
            color="white",
            fontsize=8,
        )


def _colour(span: Span) -> str:
    if is_work(span):
        return COLOURS[Work(span.name[0])]
    return TRANSFER if "(" in span.name else OTHER


def _legend(panels: Sequence[tuple[list[Row], str]]) -> list[Patch]:
    spans = [span for rows, _ in panels for row in rows for span in row]
    used = {span.name[0] for span in spans if is_work(span)}
    patches = [Patch(color=COLOURS[work], label=MEANINGS[work]) for work in Work if work in used]
    if any("(" in span.name for span in spans):
        patches.append(Patch(color=TRANSFER, label="send"))
    if any(not is_work(span) and "(" not in span.name for span in spans):
        patches.append(Patch(color=OTHER, label="waiting for other ways"))
    return [*patches, Patch(color=IDLE, label="idle")]


def _milliseconds(rows: Sequence[Row]) -> str:
    return f"{1000 * makespan(list(rows)):,.1f} ms"


def _idle(rows: Sequence[Row]) -> str:
    return f"{100 * idle_share(list(rows)):.0f}% idle"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw one epoch of a pipeline.")
    parser.add_argument("path", type=Path, help="a .png or .svg file")
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--joint-backward", action="store_true", help="put off no weight gradients")
    given = parser.parse_args(arguments)
    draw_schedule(given.path, given.stages, given.slots, not given.joint_backward)


if __name__ == "__main__":
    main()
