"""The same model in plain torch-geometric: what a person would write without GNNPipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.bench.epochs import Figures, run_task, time_epochs
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.plain import csr_adjacency, plain_network
from gnnpipe_trainer.optimizer import make_optimizer


def edge_index_of(graph: ChunkedGraph) -> Tensor:
    """[2, E] source -> target."""
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
    return torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))


def tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    """A copy: arrays of the cache are read-only."""
    return torch.from_numpy(np.array(array))


def measure(task: dict[str, Any]) -> Figures:
    """task["adjacency"]: edge_index, or csr, which also caches the normalisation where there is one."""
    job = parse_job(task["manifest"])
    folder = Path(task["folder"])
    graph = chunked_graph(job.spec.graph, 1, 1, folder)
    as_csr = task["adjacency"] == "csr"
    edge_index = edge_index_of(graph)
    adjacency = csr_adjacency(edge_index, graph.num_vertices) if as_csr else edge_index
    torch.manual_seed(job.spec.training.seed)
    network = plain_network(job.spec.model, graph.num_features, graph.num_classes, cached=as_csr)
    torch.manual_seed(job.spec.training.seed)
    network.load_from(build_model(job.spec.model, graph.num_features, graph.num_classes, folder))
    optimizer = make_optimizer(job.spec.training, list(network.parameters()))
    features, labels, mask = map(tensor_of, (graph.features, graph.labels, graph.train_mask))

    def step(epoch: int) -> float:
        loss = F.cross_entropy(network(features, adjacency)[mask], labels[mask])
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return time_epochs(task["epochs"], step)


if __name__ == "__main__":
    sys.exit(run_task(measure))
