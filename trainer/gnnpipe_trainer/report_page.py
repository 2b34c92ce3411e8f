"""`gnnpipe report DIR`: a run's course as one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Callable
from html import escape
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.filesize import decimal

from gnnpipe_trainer.draw import SAME_FILE, figure_of
from gnnpipe_trainer.pipeline.schedule import slot_count
from gnnpipe_trainer.planning.simulate import play
from gnnpipe_trainer.report import KINDS
from gnnpipe_trainer.view import duration, percent

log = logging.getLogger("gnnpipe")

Line = dict[str, Any]  # of epochs.jsonl

BLUE, ORANGE, GREEN, PALE = "#4c78a8", "#f58518", "#54a24b", "#c9d7e8"
SPLITS = {"train": PALE, "val": ORANGE, "test": BLUE}
KIND_COLOURS = dict(zip(KINDS, (BLUE, ORANGE, GREEN), strict=True))
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
  body {{ font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #222; background: #fff;
         max-width: 1120px; margin: 2.5rem auto; padding: 0 1.5rem; }}
  h1 {{ font-size: 1.6rem; margin: 0; }}
  h2 {{ font-size: 1.05rem; margin: 2.2rem 0 .4rem; }}
  p {{ color: #555; margin: .2rem 0 1rem; }}
  dl {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: .7rem; margin: 1.5rem 0; }}
  dl div {{ background: #f5f7fa; border-radius: 6px; padding: .6rem .9rem; }}
  dt {{ color: #666; font-size: .8rem; }}
  dd {{ margin: 0; font-size: 1.3rem; font-variant-numeric: tabular-nums; }}
  dd small {{ display: block; color: #888; font-size: .75rem; }}
  .charts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 1.2rem; }}
  figure {{ margin: 0; }}
  svg, img {{ width: 100%; height: auto; display: block; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<dl>
{facts}
</dl>
<div class="charts">
{charts}
</div>
{pictures}
</body>
</html>
"""


def write_page(out: Path) -> Path | None:
    """report.html in the folder of a run, also of one that is still under way; None before its first epoch
    or where nothing can be written."""
    lines = _lines(out / "epochs.jsonl")
    if not lines:
        return None
    result = _result(out / "result.json")
    content = PAGE.format(
        title=escape(result.get("job", out.resolve().name)),
        about=escape(_about(result, lines)),
        facts="\n".join(_fact(*fact) for fact in _facts(result, lines)),
        charts="\n".join(_charts(lines, result)),
        pictures="\n".join(_pictures(out, result)),
    )
    page = out / "report.html"
    try:
        page.write_text(content, encoding="utf-8")
    except OSError as error:
        log.warning("The page cannot be written: %s", error)
        return None
    return page


def _about(result: dict[str, Any], lines: list[Line]) -> str:
    if not result:
        return f"Under way: {len(lines)} epochs so far."
    plan = result["plan"]
    layers = "+".join(map(str, plan["layersPerStage"]))
    ways = f" x {plan['ways']} ways" if plan["ways"] > 1 else ""
    shape = f"{plan['stages']} stages (layers {layers}){ways}, {plan['chunks']} chunks"
    return f"{shape}; {result['epochs']} epochs in {duration(result['seconds']['total'])}."


def _facts(result: dict[str, Any], lines: list[Line]) -> list[tuple[str, str, str]]:
    """Name, figure, what to measure it against."""
    facts = [("loss", f"{lines[-1]['loss']:.4g}", f"{lines[0]['loss']:.4g} at the first epoch")]
    if not result:
        return facts
    if result["accuracy"]:
        best = f"best at epoch {result['bestEpoch'] + 1}"
        facts += [
            ("test accuracy", percent(result["accuracy"]["test"]), best),
            ("validation", percent(result["accuracy"]["val"]), best),
        ]
    sent, bubble = result["bytesPerEpoch"], result["bubble"]
    return [
        *facts,
        ("time per epoch", _time(result["seconds"]["epochMedian"]), "median"),
        ("sent per epoch", decimal(sent["total"]), f"{decimal(sent['pipeline'])} between stages"),
        ("bubble", percent(bubble["measured"]), f"{percent(bubble['ideal'])} ideal"),
        ("peak memory", decimal(max(result["peakMemoryBytes"])), "of the fullest rank"),
    ]


def _fact(name: str, figure: str, beside: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(figure)}<small>{escape(beside)}</small></dd></div>"


def _charts(lines: list[Line], result: dict[str, Any]) -> list[str]:
    drawn: list[tuple[str, Callable[[Any], None]]] = [
        ("Loss", lambda chart: _one(chart, lines, "loss", log_scale=True)),
        ("Accuracy", lambda chart: _accuracy(chart, lines)),
        ("Learning rate", lambda chart: _one(chart, lines, "learningRate")),
        ("Milliseconds per epoch", lambda chart: _milliseconds(chart, lines)),
        ("Bytes sent per epoch", lambda chart: _bytes(chart, lines)),
        ("Bubble: share of time waited", lambda chart: _bubble(chart, lines, result)),
        ("Drift of history", lambda chart: _drift(chart, lines)),
        ("Staleness", lambda chart: _staleness(chart, lines)),
    ]
    return [_chart(title, draw) for title, draw in drawn]


def _chart(title: str, draw: Callable[[Any], None]) -> str:
    figure = Figure(figsize=(4.6, 2.7), layout="constrained")
    chart = figure.subplots()
    draw(chart)
    chart.set_title(title, loc="left", fontsize=10)
    chart.tick_params(labelsize=8, length=0)
    chart.spines[["top", "right"]].set_visible(False)
    chart.spines[["left", "bottom"]].set_color("#bbbbbb")
    chart.grid(axis="y", color="#eeeeee")
    chart.set_axisbelow(True)
    chart.set_xlabel("epoch", fontsize=8)
    chart.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.get_legend_handles_labels()[1]:
        chart.legend(frameon=False, fontsize=8, loc="upper right")
    return f"<figure>{_svg(figure, title)}</figure>"


def _one(chart: Any, lines: list[Line], name: str, log_scale: bool = False) -> None:
    points = [(line["epoch"], line[name]) for line in lines if line.get(name) is not None]
    if not points:
        chart.text(0.5, 0.5, "nothing to show", ha="center", color="#999999", transform=chart.transAxes)
        chart.set_yticks([])
        return
    chart.plot(*zip(*points, strict=True), color=BLUE, linewidth=1.5)
    lowest, highest = min(value for _, value in points), max(value for _, value in points)
    if log_scale and lowest > 0 and highest > 10 * lowest:
        chart.set_yscale("log")
    else:
        chart.set_ylim(0, 1.1 * highest)


def _accuracy(chart: Any, lines: list[Line]) -> None:
    known = [line for line in lines if line.get("accuracy")]
    epochs = [line["epoch"] for line in known]
    for split, colour in SPLITS.items():
        values = [100 * line["accuracy"][split] for line in known]
        chart.plot(epochs, values, color=colour, linewidth=1.5, label=f"{split}, %")
    chart.set_ylim(0, 130)
    chart.set_yticks(range(0, 101, 20))


def _milliseconds(chart: Any, lines: list[Line]) -> None:
    chart.plot(
        [line["epoch"] for line in lines], [1000 * line["seconds"] for line in lines], color=BLUE, linewidth=1
    )
    usual = sorted(1000 * line["seconds"] for line in lines)[int(0.95 * (len(lines) - 1))]
    chart.set_ylim(0, 1.6 * usual)  # the first epochs are slow and would flatten all others


def _bytes(chart: Any, lines: list[Line]) -> None:
    epochs = [line["epoch"] for line in lines]
    used = [kind for kind in KINDS if any(line["bytes"][kind] for line in lines)]
    if used:
        series = [[line["bytes"][kind] for line in lines] for kind in used]
        chart.stackplot(epochs, series, labels=used, colors=[KIND_COLOURS[kind] for kind in used], alpha=0.85)
    chart.yaxis.set_major_formatter(lambda value, _: decimal(int(value)))
    chart.set_ylim(0, 1.3 * max(line["bytes"]["total"] for line in lines) or 1)  # with room for the legend


def _bubble(chart: Any, lines: list[Line], result: dict[str, Any]) -> None:
    epochs = [line["epoch"] for line in lines]
    idle = [[100 * share for share in line["idle"]] for line in lines]
    if len(idle[0]) > 1:
        chart.fill_between(
            epochs, [min(i) for i in idle], [max(i) for i in idle], color=PALE, label="over ranks, %"
        )
    chart.plot(epochs, [mean(i) for i in idle], color=BLUE, linewidth=1.5, label="mean, %")
    if result:
        chart.axhline(
            100 * result["bubble"]["ideal"], color=ORANGE, linestyle="--", linewidth=1, label="ideal, %"
        )
    chart.set_ylim(0, 130)
    chart.set_yticks(range(0, 101, 20))


def _drift(chart: Any, lines: list[Line]) -> None:
    known = [line for line in lines if any(d is not None for d in line.get("driftPerBlock") or [])]
    if known:
        ranges = [[d for d in line["driftPerBlock"] if d is not None] for line in known]
        lowest, highest = [min(r) for r in ranges], [max(r) for r in ranges]
        chart.fill_between(
            [line["epoch"] for line in known], lowest, highest, color=PALE, label="over blocks"
        )
    _one(chart, lines, "drift")
    if known:
        chart.set_ylim(0, 1.3 * max(highest))


def _staleness(chart: Any, lines: list[Line]) -> None:
    """Share of edges that read history, and whether gradients swing."""
    named = {"staleShare": ("read from history", BLUE), "oscillation": ("gradient autocorrelation", ORANGE)}
    for name, (label, colour) in named.items():
        points = [(line["epoch"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            chart.plot(*zip(*points, strict=True), color=colour, linewidth=1.5, label=label)
    chart.axhline(0, color="#bbbbbb", linewidth=1)
    chart.set_ylim(-1, 1.6)
    chart.set_yticks([-1, -0.5, 0, 0.5, 1])


def _pictures(out: Path, result: dict[str, Any]) -> list[str]:
    """The pipeline: as it ran if that was recorded, and as the schedule is meant."""
    found = []
    recorded = out / "schedule.png"
    if recorded.exists():
        data = base64.b64encode(recorded.read_bytes()).decode()
        found.append("<h2>One epoch as it ran</h2><p>A row per rank, a bar per chunk; grey is waiting.</p>")
        found.append(f'<figure><img alt="an epoch as it ran" src="data:image/png;base64,{data}"></figure>')
    if result:
        plan = result["plan"]
        slots = slot_count(plan["stages"], plan["ways"], plan["chunks"])
        about = f"{plan['stages']} stages, {slots} chunks at each, all taking the same time"
        figure = figure_of([(play(plan["stages"], slots), about)])
        found.append("<h2>One epoch as it is meant</h2><p>The schedule that every stage follows.</p>")
        found.append(f"<figure>{_svg(figure, 'schedule')}</figure>")
    return found


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _svg(figure: Figure, name: str) -> str:
    """To be put into a page; names inside differ from those of other charts."""
    text = io.StringIO()
    with matplotlib.rc_context({**SAME_FILE, "svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=NO_METADATA)
    content = text.getvalue()
    return content[content.index("<svg") :]


def _lines(path: Path) -> list[Line]:
    try:
        rows = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    lines = []
    for row in rows:
        try:
            lines.append(json.loads(row))
        except ValueError:  # the last one of a run under way, half written
            break
    return lines


def _result(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content
