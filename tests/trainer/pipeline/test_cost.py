"""Stages are cut by what blocks cost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.cost import measure_layer_costs
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
