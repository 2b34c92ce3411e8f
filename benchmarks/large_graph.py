"""Ways of a generated graph of a hundred million edges, in as little memory as METIS allows.

The planner's RealGraph holds a graph as lists of sources and targets beside its rows; here only the rows are left when
METIS starts, and what ways read from each other is counted a block of edges at a time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph.data import Ints
from gnnpipe_trainer.graph.partition import partition
from gnnpipe_trainer.graph.sources import load_graph
from gnnpipe_trainer.planning.cut import Cut, estimate_cut

BLOCK = 16_000_000  # edges looked at together


class LargeGraph:
    """Even chunks with counted mirrors: all that bytes depend on."""

    estimated = False

    def __init__(self, spec: GraphSpec, features: int) -> None:
        """`spec` is of a generated graph: undirected, each edge once, none from a vertex to itself."""
        data = load_graph(spec, Path())
        self.vertices, self.classes, self.features = data.num_vertices, data.num_classes, features
        self._indptr, self._indices = _rows(data.edge_index, data.num_vertices)
        self.edges = int(self._indices.size)

    def cut(self, ways: int, chunks: int, stages: int) -> Cut:
        return estimate_cut(
            self.vertices, self.edges, ways, ways if stages == 1 else chunks, self.mirrors(ways)
        )

    @cache  # noqa: B019  one graph, which lives as long as the program
    def mirrors(self, ways: int) -> int:
        """Pairs (vertex, other way that reads it)."""
        way_of = partition(self._indptr, self._indices, ways, ways)
        seen = np.zeros(self.vertices * ways, dtype=np.bool_)
        for begin in range(0, self.edges, BLOCK):
            end = min(begin + BLOCK, self.edges)
            reader = np.searchsorted(self._indptr, np.arange(begin, end), side="right") - 1
            seen[self._indices[begin:end] * ways + way_of[reader]] = True
        seen[np.arange(self.vertices) * ways + way_of] = False
        return int(seen.sum())


def _rows(edge_index: Ints, vertices: int) -> tuple[Ints, Ints]:
    """Row pointers [V + 1] and columns [2 E] of edges that are told once, with one list of keys in memory."""
    source, target = edge_index
    keys = np.empty(2 * source.size, dtype=np.int64)
    np.multiply(source, vertices, out=keys[: source.size])
    np.multiply(target, vertices, out=keys[source.size :])
    keys[: source.size] += target
    keys[source.size :] += source
    keys.sort()
    indptr = np.searchsorted(keys, np.arange(vertices + 1) * vertices)
    np.remainder(keys, vertices, out=keys)
    return indptr, keys
