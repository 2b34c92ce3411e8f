"""The authors' system in this planner's terms, to see how near its forecasts come to what they measured.

Their system differs from this one where it matters: a dense layer before the first aggregation, so that every layer
sends; no overlap of transfers and compute; no split backward; backward over all edges, fresh or not.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from scipy.optimize import nnls

from gnnpipe_api.job import HistorySpec, ParallelismSpec
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import Plan, cut_layers
from gnnpipe_trainer.planning import published
from gnnpipe_trainer.planning.cut import Cut, estimate_cut
from gnnpipe_trainer.planning.forecast import Forecast, Planner
from gnnpipe_trainer.planning.hardware import KNOWN, Costs, Hardware
from gnnpipe_trainer.planning.shape import BlockShape, EndShape, ModelShape
from gnnpipe_trainer.planning.work import StageWork

GIB = 1 << 30
GBIT = 1e9 / 8
GPUS = 8
CHUNKS_PER_GPU = 4
AS_PUBLISHED = ParallelismSpec(
    wire_zeros="send",
    split_backward=False,
    history=HistorySpec(mode="previous", gradients="last"),  # back along every edge
)


@dataclass(frozen=True)
class Cell:
    """A published value and ours."""

    name: str
    measured: float
    forecast: float

    @property
    def error(self) -> float:
        return self.forecast / self.measured - 1


@dataclass(frozen=True)
class PaperGraph:
    """Sizes of a published graph, and mirrors that are published or follow from a published volume."""

    vertices: int
    edges: int
    features: int
    classes: int
    hidden: int
    mirrors: dict[int, float] = field(default_factory=dict)  # by parts
    hybrid_mirrors: float = 0.0
    imbalance: float = 0.0  # the fullest part's edges over the mean, less 1, for each halving of the graph
    estimated: bool = True

    def cut(self, ways: int, chunks: int, stages: int) -> Cut:
        mirrors = self.hybrid_mirrors if stages > 1 and ways == 2 else self.mirrors.get(ways)
        cut = estimate_cut(self.vertices, self.edges, ways, ways if stages == 1 else chunks, mirrors)
        if stages == 1 and ways > 1:
            cut = _uneven(cut, 1 + self.imbalance * math.log2(ways))
        return replace(cut, same_slot=cut.out_entries)


def _uneven(cut: Cut, most: float) -> Cut:
    """The first way has `most` times the mean of edges, the others share the rest."""
    entries = cut.entries * (cut.ways - most) / (cut.ways - 1)
    entries[0] = cut.entries[0] * most
    return replace(cut, entries=entries, out_entries=entries)


def paper_shape(kind: str, graph: PaperGraph, layers: int) -> ModelShape:
    """Features -> dense -> `layers` aggregations of `hidden` columns with a dense layer each -> classes."""
    hidden, twice = graph.hidden, kind in ("sage", "resgcn")
    dense = hidden * hidden * (2 if twice else 1)
    widths = (hidden, hidden) if kind == "gcnii" else (hidden,)
    passes = {"gcn": 2, "sage": 3, "gcnii": 4, "resgcn": 6}[kind] * hidden
    block = BlockShape(
        hidden, widths, dense, dense, dropped=hidden, passes=passes, edges="mean" if twice else "sym"
    )
    # GCN's and SAGE's first and last dense layers are part of their first and last convolutions.
    inner = layers if kind in ("gcnii", "resgcn") else layers - 1
    blocks = (block,) * inner + (replace(block, parameters=0, multiplies=0),) * (layers - inner)
    into = graph.features * hidden * (2 if kind == "sage" else 1)
    out = hidden * graph.classes * (2 if kind == "sage" else 1)
    return ModelShape(
        graph.features,
        graph.classes,
        blocks,
        EndShape(into, into, 0, hidden),
        EndShape(out, out, 0, graph.classes),
    )


def paper_planner(kind: str, graph: PaperGraph, layers: int, hardware: Hardware) -> Planner:
    manifest = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "published"},
        "spec": {
            "graph": {"source": "synthetic"},
            "model": {"kind": kind, "layers": layers, "hidden": graph.hidden},
            "parallelism": AS_PUBLISHED.model_dump(by_alias=True, exclude_unset=True),
        },
    }
    return Planner(parse_job(manifest), paper_shape(kind, graph, layers), graph, hardware)


def forecast(kind: str, graph: PaperGraph, layers: int, gpus: int, mode: str, hardware: Hardware) -> Forecast:
    """Their three modes; hybrid has two ways."""
    planner = paper_planner(kind, graph, layers, hardware)
    ways = {"graph": gpus, "pipeline": 1, "hybrid": 2}[mode]
    stages = gpus // ways
    if stages == 1:
        chunks = (
            CHUNKS_PER_GPU if mode == "pipeline" else ways
        )  # on one GPU their pipeline is chunked all the same
        return planner.forecast(Plan(1, ways, chunks, (layers,)))
    return planner.forecast(Plan(stages, ways, CHUNKS_PER_GPU * gpus, _layers(kind, layers, stages)))


def _layers(kind: str, layers: int, stages: int) -> tuple[int, ...]:
    """GCNII's classifier counts as one more layer there, so the last stage has one convolution less."""
    if kind != "gcnii":
        return cut_layers([1.0] * layers, stages)
    units = cut_layers([1.0] * (layers + 1), stages)
    return (*units[:-1], units[-1] - 1) if units[-1] > 1 else cut_layers([1.0] * layers, stages)


@cache
def graphs() -> dict[str, PaperGraph]:
    """Reddit's mirrors are published; the others' follow from GCN's volumes and go over the parts as Reddit's do.

    Graph parallelism had parts of equal numbers of vertices, not of edges. How uneven is not published: it follows
    from GCN's time on 8 GPUs.
    """
    even = even_graphs()
    machines = hardware()
    uneven = {}
    for name, graph in even.items():
        ours = forecast("gcn", graph, 32, GPUS, "graph", machines).seconds
        edges = 2 * graph.edges / GPUS * graph.hidden * 32 * machines.costs.edge
        missing = published.SECONDS[name]["gcn"][0] - ours
        uneven[name] = replace(graph, imbalance=max(0.0, missing / edges) / math.log2(GPUS))
    return uneven


@cache
def even_graphs() -> dict[str, PaperGraph]:
    """With as many edges in every part."""
    found = {}
    for name, sizes in published.GRAPHS.items():
        plain = PaperGraph(*sizes)
        if name == "Reddit":
            found[name] = replace(
                plain, mirrors=published.REDDIT_MIRRORS, hybrid_mirrors=published.REDDIT_HYBRID_MIRRORS
            )
            continue
        whole, _, hybrid = published.VOLUMES[name]["gcn"]
        eight = _mirrors_of(plain, "graph", whole)
        shares = {parts: m / published.REDDIT_MIRRORS[8] for parts, m in published.REDDIT_MIRRORS.items()}
        found[name] = replace(
            plain,
            mirrors={parts: eight * share for parts, share in shares.items()},
            hybrid_mirrors=_mirrors_of(plain, "hybrid", hybrid),
        )
    return found


def _mirrors_of(graph: PaperGraph, mode: str, gib: float) -> float:
    """The mirrors that make up for what the published volume of GCN has besides borders and gradients."""
    none = replace(graph, mirrors={GPUS: 0.0}, hybrid_mirrors=1e-9)
    moved = forecast("gcn", none, 32, GPUS, mode, KNOWN["a5000-100g"]).volume
    return max(0.0, gib * GIB - moved.total) / (2 * 4 * graph.hidden * 32)


@cache
def hardware() -> Hardware:
    """Their machines: links as they measured them, compute fitted to what they measured on one GPU."""
    start = replace(
        KNOWN["a5000-100g"],
        name="RTX A5000 as published",
        overlap=False,
        border_rate=published.BORDER_GBIT * GBIT,
        exchange_rates={
            **{ways: gbit * GBIT for ways, gbit in published.EXCHANGE_GBIT.items()},
            16: published.EXCHANGE_GBIT[8] * GBIT,  # not published: as with 8
        },
    )
    return replace(start, costs=_fitted(start.costs))


def one_gpu_cells() -> list[tuple[PaperGraph, int, int, float]]:
    """(graph, layers, slots, seconds) of what was measured on one GPU, all GCN."""
    cells = [(even_graphs()["Reddit"], 32, CHUNKS_PER_GPU, published.ONE_GPU_SECONDS)]
    for name, modes in published.WEAK.items():
        cells.append((even_graphs()[name], 8, 1, modes["graph"][0]))
        cells.append((even_graphs()[name], 8, CHUNKS_PER_GPU, modes["pipeline"][0]))
    return cells


def _fitted(costs: Costs) -> Costs:
    """Three factors on the data sheet's costs: edges, rows (dense layers with them), and what a block costs anyhow."""
    groups = (
        ("edge",),
        ("row", "push", "random", "multiply"),
        ("forward_block", "backward_block", "weight_block"),
    )
    rows, took = [], []
    for graph, layers, slots, seconds in one_gpu_cells():
        cut = graph.cut(1, slots, stages=2)
        work = StageWork(paper_shape("gcn", graph, layers), 0, layers, AS_PUBLISHED)
        totals: dict[str, float] = {}
        for amounts in work.all_amounts(cut):
            for unit, amount in amounts.items():
                totals[unit] = totals.get(unit, 0.0) + float(amount.sum()) * getattr(costs, unit)
        rows.append([sum(totals[unit] for unit in group) / seconds for group in groups])
        took.append(1.0)
    factors, _ = nnls(np.array(rows), np.array(took))
    changed = {
        unit: getattr(costs, unit) * float(factor)
        for group, factor in zip(groups, factors, strict=True)
        for unit in group
    }
    return replace(costs, **changed, refresh=0.0, epoch=0.0)


@cache
def volume_cells() -> list[Cell]:
    cells = []
    for name, models in published.VOLUMES.items():
        for kind, values in models.items():
            for mode, gib in zip(("graph", "pipeline", "hybrid"), values, strict=True):
                ours = forecast(kind, graphs()[name], 32, GPUS, mode, hardware()).volume.total / GIB
                cells.append(Cell(f"{name} {kind} {mode}", gib, ours))
    return cells


@cache
def time_cells(even: bool = False) -> list[Cell]:
    """The 16 pairs of graph and model on 8 GPUs."""
    return [
        _time(f"{name} {kind} {mode}", kind, name, 32, GPUS, mode, seconds, even)
        for name, models in published.SECONDS.items()
        for kind, values in models.items()
        for mode, seconds in zip(("graph", "pipeline", "hybrid"), values, strict=True)
    ]


@cache
def strong_cells(even: bool = False) -> list[Cell]:
    return [
        _time(f"Reddit {kind} {mode} on {gpus}", kind, "Reddit", 32, gpus, mode, seconds, even)
        for kind, modes in published.STRONG.items()
        for mode, values in modes.items()
        for gpus, seconds in zip((2, 4, 8, 16), values, strict=True)
        if seconds is not None
    ]


@cache
def weak_cells(even: bool = False) -> list[Cell]:
    """From two GPUs on: one GPU is what the compute costs were fitted to."""
    return [
        _time(f"{name} {mode} on {gpus}", "gcn", name, 8 * gpus, gpus, mode, seconds, even)
        for name, modes in published.WEAK.items()
        for mode, values in modes.items()
        for gpus, seconds in zip((2, 4, 8, 16), values[1:], strict=True)
    ]


@cache
def depth_cells(even: bool = False) -> list[Cell]:
    return [
        _time(f"{name} {mode}, {layers} layers", "gcnii", name, layers, GPUS, mode, seconds, even)
        for name, modes in published.DEPTH.items()
        for mode, values in modes.items()
        for layers, seconds in zip((8, 16, 32, 64, 128), values, strict=True)
    ]


def _time(
    name: str, kind: str, graph: str, layers: int, gpus: int, mode: str, seconds: float, even: bool
) -> Cell:
    known = even_graphs() if even else graphs()
    ours = forecast(kind, known[graph], layers, gpus, mode, hardware())
    return Cell(name, seconds, ours.seconds)


def winners(cells: list[Cell]) -> list[tuple[str, bool]]:
    """For each pair of a graph-parallel and a pipeline cell: is the one that was quicker forecast to be quicker?"""
    by_name = {cell.name: cell for cell in cells}
    pairs = []
    for name, graph in by_name.items():
        pipeline = by_name.get(name.replace("graph", "pipeline"))
        if "graph" in name and pipeline is not None:
            same = (graph.measured < pipeline.measured) == (graph.forecast < pipeline.forecast)
            pairs.append((name.replace(" graph", ""), same))
    return pairs


def median_error(cells: Iterable[Cell]) -> float:
    return statistics.median(abs(cell.error) for cell in cells)
