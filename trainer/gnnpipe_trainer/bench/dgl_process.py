"""The same model in DGL. Runs in DGL's own environment, so it knows only torch, DGL and epochs.py."""

from __future__ import annotations

import sys
from typing import Any

import dgl  # type: ignore[import-not-found]
import torch
from dgl.nn import GraphConv, SAGEConv  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch.nn import functional as F

from gnnpipe_trainer.bench.epochs import Figures, run_task, time_epochs

KINDS = ("gcn", "sage")


class Network(nn.Module):
    """Convolutions with ReLU and dropout between them, as in models/gcn.py and models/sage.py."""

    def __init__(self, kind: str, widths: list[tuple[int, int]], dropout: float) -> None:
        super().__init__()
        make = {"gcn": GraphConv, "sage": lambda i, o: SAGEConv(i, o, "mean")}[kind]
        self.convs = nn.ModuleList(make(*pair) for pair in widths)
        self.dropout = dropout

    def forward(self, graph: dgl.DGLGraph, h: Tensor) -> Tensor:
        *inner, last = self.convs
        for conv in inner:
            h = F.dropout(conv(graph, h).relu(), self.dropout, self.training)
        logits: Tensor = last(graph, h)
        return logits


def weights_from_plain(plain: dict[str, Tensor]) -> dict[str, Tensor]:
    """torch-geometric's names and shapes as DGL's."""
    renamed = {}
    for name, tensor in plain.items():
        if name.endswith(".lin.weight"):  # GraphConv multiplies from the other side
            renamed[name.replace(".lin.weight", ".weight")] = tensor.t().contiguous()
        else:
            name = name.replace("lin_l.bias", "fc_self.bias")
            renamed[name.replace("lin_l", "fc_neigh").replace("lin_r", "fc_self")] = tensor
    return renamed


def measure(task: dict[str, Any]) -> Figures:
    """task["problem"]: the graph, the widths and the first weights, as the benchmark saved them."""
    problem = torch.load(task["problem"], weights_only=True)
    sources, targets = problem["edge_index"]
    graph = dgl.graph((sources.int(), targets.int()), num_nodes=problem["features"].shape[0])
    if problem["kind"] == "gcn":
        graph = dgl.add_self_loop(graph)
    graph = graph.formats(["csr", "csc"])
    graph.create_formats_()
    network = Network(problem["kind"], problem["widths"], problem["dropout"])
    network.load_state_dict(weights_from_plain(problem["weights"]))
    optimizer = torch.optim.Adam(network.parameters(), lr=problem["learning_rate"])
    features, labels, mask = problem["features"], problem["labels"], problem["mask"]

    def step(epoch: int) -> float:
        loss = F.cross_entropy(network(graph, features)[mask], labels[mask])
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return time_epochs(task["epochs"], step)


if __name__ == "__main__":
    sys.exit(run_task(measure))
