"""Bytes per epoch of the paper's 16 pairs of graph and model, on generated graphs of the same sizes.

    python benchmarks/volumes.py                       # the graphs that are not in the results yet
    python benchmarks/volumes.py --only Flickr         # one of them, anew
    python benchmarks/volumes.py --only Squirrel --file squirrel.npz     # the real one, where its file is at hand

8 GPUs, 32 layers, fp32, as published: graph parallelism over 8 ways, a pipeline of 8 stages, hybrid with 4 stages of
2 ways. Graphs are generated with as many vertices and edges and cut by METIS as training would; the bytes follow from
the cut's real mirrors by the formulas that tests hold to what the engine counts. What is published is set beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from large_graph import LargeGraph
from pages import put

from gnnpipe_api.load import parse_job
from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.peak import peak_resident_bytes
from gnnpipe_trainer.planning import published
from gnnpipe_trainer.planning.forecast import Planner
from gnnpipe_trainer.planning.graphs import RealGraph
from gnnpipe_trainer.planning.hardware import KNOWN
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.volume import volume

RESULTS = Path(__file__).parent / "results" / "volumes.json"
GIB = 1 << 30
COMMANDS = "`python benchmarks/volumes.py --page docs/planning.md`; a real graph: `--only Squirrel --file squirrel.npz`"
LAYERS = 32
CUTS = {"graph": (1, 8, 1), "pipeline": (8, 1, 32), "hybrid": (4, 2, 16)}  # stages, ways, slots
COMMUNITIES, INSIDE = 64, 0.8  # of the generated graphs, and the share of edges inside; real graphs differ
LARGE = 50_000_000  # edges: above, only what bytes depend on is counted
PLACEHOLDER_FEATURES = 8  # features are never sent: the graph is generated with few, to spare memory


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=published.GRAPHS, action="append", help="may be repeated")
    parser.add_argument(
        "--file", type=Path, metavar="NPZ", help="the real graph of the one that --only names"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the table into this page: docs/planning.md"
    )
    given = parser.parse_args()
    content: dict[str, Any] = json.loads(given.results.read_text()) if given.results.exists() else {}
    missing = [name for name in published.GRAPHS if name not in content]
    for name in given.only or missing:
        content[name] = cells(name, given.file)
        given.results.write_text(json.dumps(content, indent=1) + "\n")
    text = f"{table(content)}\n\n{COMMANDS}"
    if given.page:
        put(given.page, "volumes", text)
    sys.stdout.write(f"{text}\n")
    return 0


def cells(name: str, file: Path | None = None) -> dict[str, Any]:
    """Bytes by model and mode, and what it took to find them."""
    start = time.perf_counter()
    vertices, edges, features, classes, hidden = published.GRAPHS[name]
    spec = GraphSpec(source="npz", path=str(file)) if file else _job("gcn", name, hidden).spec.graph
    if edges > LARGE and not file:
        graph: LargeGraph | RealGraph = LargeGraph(spec, features)
    else:
        graph = RealGraph(spec, Path())
        graph.features = features
    found: dict[str, dict[str, int]] = {}
    for kind in published.MODELS:
        job = _job(kind, name, hidden)
        shape = built_in_shape(job.spec.model, features, classes)
        planner = Planner(job, shape, graph, KNOWN["a5000-100g"])
        found[kind] = {}
        for mode, cut in CUTS.items():
            plan = planner.plan(*cut)
            moved = volume(job, plan, shape, graph.cut(plan.ways, plan.chunks, plan.stages))
            found[kind][mode] = moved.total
    return {
        "real": file is not None,
        "vertices": vertices,
        "edges": graph.edges,
        "mirrors": {str(ways): graph.cut(ways, ways, 1).mirrors for ways in (2, 8)},
        "bytes": found,
        "seconds": round(time.perf_counter() - start, 1),
        "peakMemoryBytes": peak_resident_bytes(),
    }


def _job(kind: str, name: str, hidden: int) -> Any:
    vertices, edges, *_ = published.GRAPHS[name]
    graph = {
        "source": "synthetic",
        "vertices": vertices,
        "averageDegree": edges / vertices,
        "classes": COMMUNITIES,
        "homophily": INSIDE,
        "features": PLACEHOLDER_FEATURES,
    }
    return parse_job(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": name.lower()},
            "spec": {"graph": graph, "model": {"kind": kind, "layers": LAYERS, "hidden": hidden}},
        }
    )


def _title(name: str, found: dict[str, Any]) -> str:
    return f"{name}, the real one" if found.get("real") else name


def table(content: dict[str, Any]) -> str:
    lines = [
        "| graph | model | graph GiB (paper) | pipeline GiB (paper) | hybrid GiB (paper) | graph / pipeline (paper) |",
        "|---|---|---|---|---|---|",
    ]
    ratios, theirs = [], []
    for name in content:
        for kind, moved in content[name]["bytes"].items():
            paper = dict(zip(("graph", "pipeline", "hybrid"), published.VOLUMES[name][kind], strict=True))
            cells = [f"{moved[mode] / GIB:.2f} ({paper[mode]:g})" for mode in CUTS]
            ratios.append(moved["graph"] / moved["pipeline"])
            theirs.append(paper["graph"] / paper["pipeline"])
            shown = [_title(name, content[name]), kind, *cells, f"{ratios[-1]:.1f} ({theirs[-1]:.1f})"]
            lines.append(f"| {' | '.join(shown)} |")
    means = f"{statistics.geometric_mean(ratios):.1f} ({statistics.geometric_mean(theirs):.1f})"
    lines.append(f"| all | geometric mean | | | | {means} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
