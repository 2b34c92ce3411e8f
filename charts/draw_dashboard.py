"""Run every query of the dashboard against a Prometheus, say which got no data, and draw the answers.

    python charts/draw_dashboard.py http://127.0.0.1:9090 --namespace default --job quickstart --out dashboard.png

Exits with 1 where a query was not answered, so that it also serves as a check.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from panels import AT_A_GLANCE, ONE_JOB, STATES, Panel

log = logging.getLogger("draw_dashboard")

TIMEOUT_SECONDS = 10
COLUMNS = 3
POINTS = 200  # per line
UNITS: dict[str, Callable[[float], str]] = {
    "short": lambda value: f"{value:.4g}",
    "s": EngFormatter("s", places=1).format_data,
    "bytes": EngFormatter("B", places=1).format_data,
    "Bps": EngFormatter("B/s", places=1).format_data,
    "percentunit": lambda value: f"{value:.0%}",
}


@dataclass(frozen=True)
class Line:
    """One series of an answer: seconds since the start of the range, and a value for each."""

    name: str
    seconds: list[float]
    values: list[float]


@dataclass(frozen=True)
class Question:
    """Where, what job and which time (Unix seconds) the dashboard is asked for."""

    prometheus: str
    namespace: str
    job: str
    start: float
    end: float
    rate_seconds: int = 60

    def ask(self, expression: str, legend: str) -> list[Line]:
        step = max(1.0, (self.end - self.start) / POINTS)
        start = self.end - (self.end - self.start) // step * step  # so that the last step is the end
        asked = {"query": self.filled_in(expression), "start": start, "end": self.end, "step": step}
        url = f"{self.prometheus}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
            series = json.load(answer)["data"]["result"]
        return [self._line(one, legend) for one in series]

    def filled_in(self, expression: str) -> str:
        """The query as Grafana sends it, with its variables' values."""
        values = {
            "$__rate_interval": f"{self.rate_seconds}s",
            "$namespace": self.namespace,
            "$job": self.job,
        }
        for name, value in values.items():
            expression = expression.replace(name, value)
        return expression

    def _line(self, series: dict[str, Any], legend: str) -> Line:
        name = legend
        for label, value in series["metric"].items():
            name = name.replace(f"{{{{{label}}}}}", value)
        points = [(float(at) - self.start, float(value)) for at, value in series["values"]]
        known = [(at, value) for at, value in points if math.isfinite(value)]
        return Line(name, [at for at, _ in known], [value for _, value in known])


def draw_states(axes: Axes, lines: list[Line]) -> None:
    """One bar per stage, coloured by what it did."""
    colours = {int(number): state["color"] for number, state in STATES.items()}
    for row, line in enumerate(lines):
        widths = [after - at for at, after in zip(line.seconds, line.seconds[1:], strict=False)]
        bars = list(zip(line.seconds, widths, strict=False))
        axes.broken_barh(
            bars, (row - 0.4, 0.8), facecolors=[colours[int(value)] for value in line.values[: len(bars)]]
        )
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    for state in STATES.values():
        axes.plot([], [], color=state["color"], linewidth=6, label=state["text"])
    axes.legend(fontsize=6, loc="upper right")


def draw_lines(axes: Axes, lines: list[Line], panel: Panel) -> None:
    for line in lines:
        axes.plot(line.seconds, line.values, label=line.name or "value", linewidth=1)
    axes.set_ylim(bottom=panel.least, top=1.2 * max(axes.get_ylim()[1], 0))  # the legend's place is above
    axes.yaxis.set_major_formatter(lambda value, place: UNITS[panel.unit](value))
    if 0 < len(lines) <= 12:
        axes.legend(fontsize=6, loc="upper left", ncols=2 if len(lines) > 4 else 1)


def write_last_values(axes: Axes, lines: list[Line], panel: Panel) -> None:
    """What panels without a time axis show: each series that is still there, with its last value."""
    end = max((line.seconds[-1] for line in lines if line.seconds), default=0.0)
    last = [line for line in lines if line.seconds and line.seconds[-1] == end]
    for row, line in enumerate(last, start=1):
        height = 1 - row / (len(last) + 1)
        axes.text(0.05, height, line.name or "value", va="center", fontsize=10)
        axes.text(0.95, height, UNITS[panel.unit](line.values[-1]), va="center", ha="right", fontsize=16)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_panel(panel: Panel, axes: Axes, lines: list[Line]) -> None:
    axes.set_title(panel.title, fontsize=9)
    if panel.instant:
        write_last_values(axes, lines, panel)
        return
    axes.set_xlabel("seconds", fontsize=7)
    if panel.kind == "state-timeline":
        draw_states(axes, lines)
    else:
        draw_lines(axes, lines, panel)


def draw(question: Question, panels: list[Panel], out: Path) -> list[str]:
    """Draws the panels into the file `out`; returns the queries that nothing answered."""
    rows = math.ceil(len(panels) / COLUMNS)
    figure, grid = pyplot.subplots(rows, COLUMNS, figsize=(6 * COLUMNS, 3 * rows), squeeze=False)
    unanswered = []
    for panel, axes in zip(panels, grid.flat, strict=False):
        answers = {expression: question.ask(expression, legend) for expression, legend in panel.queries}
        unanswered += [expression for expression, lines in answers.items() if not lines]
        lines = [line for answer in answers.values() for line in answer]
        draw_panel(panel, axes, lines)
        axes.tick_params(labelsize=7)
    for axes in list(grid.flat)[len(panels) :]:
        axes.remove()
    figure.tight_layout()
    figure.savefig(out, dpi=100)
    pyplot.close(figure)
    return unanswered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prometheus", help="URL of a Prometheus")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--job", required=True)
    parser.add_argument("--out", type=Path, required=True, help="the picture, a PNG file")
    parser.add_argument("--start", type=float, help="Unix seconds; left out: an hour before the end")
    parser.add_argument("--end", type=float, help="Unix seconds; left out: now")
    parser.add_argument("--rate-seconds", type=int, default=60, help="four times the scrape interval")
    given = parser.parse_args()
    end = given.end or time.time()
    start = given.start or end - 3600
    question = Question(
        given.prometheus.rstrip("/"), given.namespace, given.job, start, end, given.rate_seconds
    )
    unanswered = draw(question, [*AT_A_GLANCE, *ONE_JOB], given.out)
    for expression in unanswered:
        log.error("no data for: %s", expression)
    return 1 if unanswered else 0


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sys.exit(main())
