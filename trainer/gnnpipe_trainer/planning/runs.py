"""The small jobs of a calibration, their graphs and their work. No torch: graphs are made while it is being loaded."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph, cut
from gnnpipe_trainer.graph.sources import load_graph
from gnnpipe_trainer.planning.amounts import amounts_of, as_lists, counted_cut

GRAPHS, AMOUNTS = "graphs.pickle", "amounts.json"


@dataclass(frozen=True)
class Run:
    """Few layers are enough: widths, degrees and chunk sizes are what must differ."""

    kind: str
    hidden: int
    dropout: float
    chunks: int
    vertices: int
    degree: float
    layers: int = 4
    stages: int = 2
    ways: int = 1
    gradients: str = "drop"  # `last` sums gradients over all edges, and sorts none out: both ways are timed

    def job(self) -> GNNPipeJob:
        graph = {
            "source": "synthetic",
            "vertices": self.vertices,
            "averageDegree": self.degree,
            "features": 64,
        }
        model = {"kind": self.kind, "layers": self.layers, "hidden": self.hidden, "dropout": self.dropout}
        return parse_job(
            {
                "apiVersion": "gnnpipe.io/v1alpha1",
                "kind": "GNNPipeJob",
                "metadata": {"name": "calibration"},
                "spec": {
                    "graph": graph,
                    "model": model,
                    "parallelism": {
                        "stages": self.stages,
                        "ways": self.ways,
                        "chunks": self.chunks,
                        "history": {"gradients": self.gradients},
                    },
                },
            }
        )


# Each holds more than processors cache, as jobs do: smaller ones are a third quicker than what they stand for.
CROWDED_RUN = Run("resgcn", 64, 0.5, 8, 20_000, 12, gradients="last")  # tells how ranks hold each other up
TALKING_RUNS = [  # as pipelines: few large messages, and many small ones
    Run("gcnii", 64, 0.5, 8, 24_000, 20, gradients="last"),
    Run("gcnii", 64, 0.0, 32, 20_000, 12, gradients="last"),
]
SWAPPING_RUNS = [  # as two ways: large swaps, and small ones
    Run("sage", 64, 0.0, 2, 20_000, 20, stages=1, ways=2),
    Run("gcn", 32, 0.0, 2, 4_000, 10, layers=8, stages=1, ways=2),
]
TINY_RUN = Run("gcnii", 16, 0.5, 4, 400, 8)
TURNS_ON_CORES = 2


def turns_run(cores: int) -> Run:
    """As a pipeline with two ranks for each of two cores (of one, where there is no second): they take turns."""
    stages = 2 * min(cores, TURNS_ON_CORES)
    return Run("gcnii", 64, 0.5, 4 * stages, 20_000, 12, layers=2 * stages, stages=stages, gradients="last")


WHOLE_RUNS = [  # a single slot is taken without history
    Run("gcnii", 64, 0.5, 1, 24_000, 10, stages=1),
    Run("resgcn", 96, 0.3, 1, 12_000, 30, layers=3, stages=1),
]
RUNS = [
    CROWDED_RUN,
    *TALKING_RUNS,
    Run("gcn", 32, 0.0, 8, 24_000, 40),
    Run("resgcn", 128, 0.3, 4, 12_000, 10, layers=2, gradients="last"),
    Run("sage", 64, 0.0, 16, 16_000, 30),
    Run("sage", 64, 0.0, 4, 5_000, 80),  # mostly edges
    Run("gat", 32, 0.0, 4, 2_000, 10, layers=2),
    *WHOLE_RUNS,
]


def cut_graph(job: GNNPipeJob) -> ChunkedGraph:
    plan = make_plan(job)
    return cut(load_graph(job.spec.graph, Path()), plan.ways, plan.chunks)


def make_graphs(folder: Path, cores: int) -> None:
    """Those of all runs, for `read_graphs`; and how much work the runs are, for `read_amounts`."""
    graphs = {run: cut_graph(run.job()) for run in [*RUNS, *SWAPPING_RUNS, turns_run(cores)]}
    with (folder / GRAPHS).open("wb") as file:
        pickle.dump(graphs, file, protocol=pickle.HIGHEST_PROTOCOL)
    turns = turns_run(cores)
    counted = {
        "amounts": [amounts_of(run.job(), graphs[run]) for run in RUNS],
        "wholes": [run.chunks == 1 for run in RUNS],
        "turnsCut": as_lists(counted_cut(turns.job(), graphs[turns])),
    }
    (folder / AMOUNTS).write_text(json.dumps(counted))


def read_graphs(folder: Path) -> dict[Run, ChunkedGraph]:
    """What a process of our own has just written into a folder of our own."""
    with (folder / GRAPHS).open("rb") as file:
        graphs: dict[Run, ChunkedGraph] = pickle.load(file)
    return graphs


def read_amounts(folder: Path) -> dict[str, Any]:
    counted: dict[str, Any] = json.loads((folder / AMOUNTS).read_text())
    return counted
