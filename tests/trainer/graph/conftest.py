from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnpipe_trainer.graph import GraphData


@pytest.fixture
def graph_arrays() -> dict[str, Any]:
    """Arrays of a good .npz file: a ring of six vertices, two classes."""
    ring = np.arange(6)
    return {
        "x": np.eye(6, 3, dtype=np.float32),
        "y": ring % 2,
        "edge_index": np.stack((ring, (ring + 1) % 6)),
        "train_mask": ring < 2,
        "val_mask": (ring >= 2) & (ring < 4),
        "test_mask": ring >= 4,
    }


@pytest.fixture
def write_npz(tmp_path: Path, graph_arrays: dict[str, Any]) -> Callable[..., Path]:
    """Write the good file with some arrays replaced, or left out where None is given."""

    def write(**changes: Any) -> Path:
        arrays = {key: value for key, value in (graph_arrays | changes).items() if value is not None}
        np.savez(tmp_path / "graph.npz", **arrays)
        return tmp_path / "graph.npz"

    return write


@pytest.fixture
def make_graph() -> Callable[..., GraphData]:
    """A graph with given edges and random everything else."""

    def make(vertices: int, edges: list[tuple[int, int]], *, directed: bool = False) -> GraphData:
        rng = np.random.default_rng(vertices)
        place = rng.permutation(vertices)
        return GraphData(
            name="test graph",
            features=rng.standard_normal((vertices, 3), dtype=np.float32),
            labels=rng.integers(0, 4, vertices),
            edge_index=np.array(edges, dtype=np.int64).reshape(-1, 2).T,
            train_mask=place <= vertices // 2,
            val_mask=place == vertices // 2 + 1,
            test_mask=place > vertices // 2 + 1,
            num_classes=4,
            directed=directed,
        )

    return make
