"""Stages are cut by what blocks cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import better_cut
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.cost import measure_layer_costs, quickest
from gnnpipe_trainer.pipeline.shard import Shard


def costs(tmp_path: Path, kind: str, features: int, layers: int = 8) -> list[float]:
    job = parse_job(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "cost"},
            "spec": {
                "graph": {"source": "synthetic", "vertices": 3000, "features": features, "classes": 4},
                "model": {"kind": kind, "layers": layers, "hidden": 16},
                "parallelism": {"stages": 2, "chunks": 2},
            },
        }
    )
    graph = chunked_graph(job.spec.graph, 1, 2, tmp_path, tmp_path / "cache")
    model = build_model(job.spec.model, graph.num_features, graph.num_classes)
    measured = measure_layer_costs(model, Shard(graph, 0, torch.float32, torch.device("cpu")))
    assert all(parameter.grad is None for parameter in model.parameters())
    return measured


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "gcnii", "resgcn"])
def test_alike_blocks_cost_alike(tmp_path: Path, kind: str) -> None:
    measured = costs(tmp_path, kind, features=16)
    assert len(measured) == 8
    assert min(measured) > 0
    assert len(set(measured[1:-1])) == 1


class BusyMachine:
    """A clock, and work of a second each that takes ten times as long while others are busy."""

    def __init__(self, busy: range) -> None:
        self.now, self.busy = 0.0, busy

    def work(self) -> None:
        self.now += 10.0 if int(self.now) in self.busy else 1.0


@pytest.mark.parametrize("start", range(0, 30, 5))
def test_a_busy_minute_cannot_move_the_cut(start: int) -> None:
    """It slows some rounds of every part, but never all rounds of one."""
    machine = BusyMachine(range(start, start + 60))
    alike, last = "blocks 0 to 6", "block 7"
    seconds = quickest({alike: machine.work, last: machine.work}, clock=lambda: machine.now)
    assert better_cut((2, 2, 2, 2), [seconds[alike]] * 7 + [seconds[last]]) == (2, 2, 2, 2)
