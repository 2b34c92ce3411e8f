"""Small random graphs, directed and without self-loops, as the graph room hands them to models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

VERTICES, FEATURES, CLASSES = 40, 7, 3


@dataclass(frozen=True)
class SmallGraph:
    features: Tensor  # [V, F], float64
    labels: Tensor  # [V]
    train: Tensor  # [V], bool
    edge_index: Tensor  # [2, E]


@pytest.fixture(autouse=True)
def _seeded_float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=["directed", "undirected"])
def graph(request: pytest.FixtureRequest) -> SmallGraph:
    edges = torch.randint(0, VERTICES - 1, (2, 120))  # the last vertex stays isolated
    if request.param == "undirected":
        edges = torch.cat([edges, edges.flip(0)], dim=1)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    return SmallGraph(
        features=torch.randn(VERTICES, FEATURES),
        labels=torch.randint(0, CLASSES, (VERTICES,)),
        train=torch.rand(VERTICES) < 0.6,
        edge_index=edges,
    )
