"""Writes docs/scaling.md, every number in it computed.

`python -m gnnpipe_trainer.planning.scaling_page docs/scaling.md`
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.planning import reproduce
from gnnpipe_trainer.planning.choose import candidates
from gnnpipe_trainer.planning.forecast import Forecast, Planner
from gnnpipe_trainer.planning.graphs import SizedGraph
from gnnpipe_trainer.planning.hardware import KNOWN
from gnnpipe_trainer.planning.reproduce import Cell
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.show import duration

PAPERS = SizedGraph(111_000_000, 3_200_000_000, 128, 172)  # the sizes of ogbn-papers100M, both directions
LAYERS, HIDDEN = 32, 64
MACHINES = "a100-100g"
Row = Sequence[object]


def page() -> str:
    return (
        "\n\n".join([_INTRODUCTION, published_section(), _strong(), _weak(), _depth(), _sizes(), _ENDS])
        + "\n"
    )


def published_section() -> str:
    sets: list[tuple[str, Callable[..., list[Cell]]]] = [
        ("strong scaling: Reddit, 4 models, 2 to 16 GPUs", reproduce.strong_cells),
        ("weak scaling: GCN, 3 graphs, 2 to 16 GPUs", reproduce.weak_cells),
        ("depth: GCNII, 3 graphs, 8 to 128 layers", reproduce.depth_cells),
        ("16 pairs of graph and model, 3 modes, 8 GPUs", reproduce.time_cells),
    ]
    volumes = reproduce.volume_cells()
    rows: list[Row] = [("volume: 16 pairs, 3 modes, 8 GPUs", len(volumes), *_errors(volumes), "")]
    right = pairs = 0
    for name, cells in sets:
        found, even = cells(), cells(even=True)
        winners = reproduce.winners(found)
        right, pairs = right + sum(same for _, same in winners), pairs + len(winners)
        rows.append((name, len(found), *_errors(found), _percent(reproduce.median_error(even))))
    even_right = sum(same for _, cells in sets for _, same in reproduce.winners(cells(even=True)))
    wrong = [name for _, cells in sets for name, same in reproduce.winners(cells()) if not same]
    table = _table(("what", "cells", "median error", "worst error", "median, parts taken as even"), rows)
    detail = [
        (cell.name, cell.measured, f"{cell.forecast:.3f}", f"{100 * cell.error:+.0f}%")
        for _, cells in sets[:3]
        for cell in cells()
    ]
    return (
        f"{_PUBLISHED}\n\n{table}\n\n"
        f"Which of graph parallelism and pipeline is quicker is forecast rightly in {right} of {pairs} published "
        f"pairs ({even_right} with parts taken as even). Wrong: {', '.join(wrong)}.\n\n"
        f"<details><summary>Every cell of strong, weak and depth scaling</summary>\n\n"
        f"{_table(('cell', 'measured s', 'forecast s', 'error'), detail)}\n\n</details>"
    )


def _strong() -> str:
    rows = [_best_row(gpus, _planner(LAYERS, PAPERS), gpus) for gpus in (64, 128, 256, 512, 1024)]
    return f"{_STRONG}\n\n{_table(_header('GPUs'), rows)}"


def _weak() -> str:
    rows = []
    for gpus in (8, 64, 256, 1024):
        graph = SizedGraph(gpus * 200_000, gpus * 6_000_000, 128, 172)
        rows.append(_best_row(f"{gpus}: {graph.edges:.1e} edges", _planner(LAYERS, graph), gpus))
    return f"{_WEAK}\n\n{_table(_header('GPUs'), rows)}"


def _depth() -> str:
    graph = SizedGraph(2_400_000, 124_000_000, 100, 47)  # the sizes of ogbn-products
    rows = [_best_row(layers, _planner(layers, graph), 64) for layers in (8, 16, 32, 64, 128)]
    return f"{_DEPTH}\n\n{_table(_header('layers'), rows)}"


def _sizes() -> str:
    rows = []
    for edges in (10**9, 10**10, 10**11):
        planner = _planner(LAYERS, SizedGraph(edges // 30, edges, 128, 172))
        for gpus in (256, 1024):
            forecasts = _forecasts(planner, gpus)
            best = min(forecasts, key=lambda f: f.peak_bytes)
            parts = max(best.memory, key=lambda memory: memory.total)
            rows.append(
                (
                    f"{edges:.0e}",
                    gpus,
                    f"{best.plan.stages} x {best.plan.ways}",
                    *(
                        f"{value / 1e9:.1f}"
                        for value in (best.peak_bytes, parts.graph, parts.history, parts.activations)
                    ),
                    "yes" if best.fits else "no",
                )
            )
    header = (
        "edges",
        "GPUs",
        "stages x ways",
        "GB per rank",
        "graph",
        "history",
        "activations",
        "fits in 80 GB",
    )
    return f"{_SIZES}\n\n{_table(header, rows)}"


def _best_row(label: object, planner: Planner, gpus: int) -> Row:
    """The quickest plan of each mode that fits, and the best in full."""
    forecasts = _forecasts(planner, gpus)
    fitting = [forecast for forecast in forecasts if forecast.fits]
    times = []
    for mode in ("pipeline", "hybrid", "graph"):
        quick = [f.seconds for f in fitting if f.mode == mode]
        there = any(f.mode == mode for f in forecasts)
        times.append(duration(min(quick)) if quick else ("too much memory" if there else "-"))
    if not fitting:
        return (label, *times, "-", "-", "-", "-")
    best = min(fitting, key=lambda forecast: forecast.seconds)
    cut = f"{best.plan.stages} x {best.plan.ways}"
    share = f"{100 * best.epoch.bubble:.0f}%"
    return (label, *times, cut, share, f"{best.volume.total / 1e9:.0f}", f"{best.peak_bytes / 1e9:.0f}")


def _forecasts(planner: Planner, gpus: int) -> list[Forecast]:
    """With four chunks for each stage: the page needs no finer answer."""
    return [planner.forecast(plans[len(plans) // 2]) for plans in candidates(planner, gpus)]


def _planner(layers: int, graph: SizedGraph) -> Planner:
    manifest: dict[str, Any] = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "scaling"},
        "spec": {
            "graph": {"source": "synthetic"},
            "model": {"kind": "gcnii", "layers": layers, "hidden": HIDDEN},
            "parallelism": {
                "wire": "bf16",
                "wireZeros": "send",
                "recompute": True,
                "history": {"mode": "shift"},
            },
        },
    }
    job = parse_job(manifest)
    shape = built_in_shape(job.spec.model, graph.features, graph.classes)
    return Planner(job, shape, graph, KNOWN[MACHINES])


def _errors(cells: list[Cell]) -> tuple[str, str]:
    errors = [abs(cell.error) for cell in cells]
    return _percent(statistics.median(errors)), _percent(max(errors))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _table(header: Row, rows: Sequence[Row]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _header(first: str) -> Row:
    return (
        first,
        "pipeline",
        "hybrid",
        "graph",
        "best: stages x ways",
        "bubble",
        "GB per epoch",
        "GB per rank",
    )


_INTRODUCTION = """# Scaling, on paper

What the planner (docs/planning.md) says about machines that are not here. Nothing on this page was measured by us; \
every number is computed by `python -m gnnpipe_trainer.planning.scaling_page docs/scaling.md`, and a test keeps the \
first section equal to what that command writes."""

_PUBLISHED = """## How far to trust it: the published measurements

The authors of GNNPipe measured on RTX A5000 cards, 4 in a machine. Their system is described to the planner as it is \
(no overlap of transfers and compute, no split backward, backward over all edges, 4 chunks per GPU). What goes in: \
sizes of graphs and models; their link figures (56 Gbit/s between stages; 155, 100 and 32 Gbit/s in exchanges of 2, 4 \
and 8, and 32 with 16, which is not published); Reddit's mirrors. What is fitted: three factors on the data sheet's \
compute costs, to the seven one-GPU times; the mirrors of the other graphs, to GCN's volumes; and how uneven the \
parts of graph parallelism are (equal in vertices, not in edges), to GCN's time on 8 GPUs. That last one is 0.21 per \
halving for Reddit and none elsewhere; the last column shows the errors without it."""

_STRONG = f"""## Strong scaling: a graph of 3.2 billion edges

The sizes of ogbn-papers100M, GCNII with {LAYERS} layers of {HIDDEN} columns, A100 cards, 8 in a machine with NVLink, \
100 Gbit/s between machines; the settings of least memory: history mode shift, recomputed activations, bf16 on the \
wire. The cut is estimated from the sizes, rather too pessimistically for graphs with communities. Seconds per epoch \
of the quickest plan of each mode that fits into 80 GB; the last columns are of the best of them."""

_WEAK = """## Weak scaling: 6 million edges per GPU

The same model and machines; the graph grows with the number of GPUs."""

_DEPTH = """## Depth: 64 GPUs, 124 million edges

The sizes of ogbn-products. Fewer layers than GPUs leave no pure pipeline: there hybrid takes over. A large bubble \
here means that stages wait for the link between machines, which all ways of a stage share."""

_SIZES = """## Memory: up to 100 billion edges

The plan that needs the least memory, average degree 30. Ways divide a graph, its history and its activations; stages \
divide history and activations only, because every stage holds the graph."""

_ENDS = """## Where each resource runs out, and what the design does about it

| resource | runs out when | what is done |
| --- | --- | --- |
| memory for the graph | a way's edges do not fit: about 40 bytes per edge on a GPU, in both directions | more ways; \
stages do not help, each holds the way's whole share |
| memory for history | 12 bytes for each vertex of a way (its halo too), column and layer of a stage | \
`history: {mode: shift}` keeps one buffer in place of two |
| memory for activations | 3 to 6 times hidden for each vertex and layer | `recompute: true`, more stages, more ways |
| indices | 2 billion edges in one way: they are 32 bits wide | more ways; a wider index is not there yet |
| the link between stages | a chunk takes longer to send than to compute | `wire: bf16`; transfers hide behind compute \
until then |
| the link inside a stage | ways reach over more than one machine | keep ways within a machine, add stages |
| the pipeline | fewer than about 4 chunks for each stage, or fewer layers than stages | more chunks, hybrid |
| accuracy | more chunks read more history | docs on staleness; ways lower it, chunks that run together are fresh |
| operator and API server | not computed here | one pod per stage, not per rank: pods grow with stages x jobs |"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
