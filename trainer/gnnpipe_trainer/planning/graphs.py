"""Where the planner's cuts come from: the real graph, partitioned as training would, or its sizes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.planning.cut import Cut, Ints, count_cut, estimate_cut, merge_slots, split_evenly

# Above, METIS cuts into ways only, which bytes depend on; their chunks are taken as even, which METIS makes them.
MOST_EDGES_TO_CUT_FINELY = 3_000_000


class Graph(Protocol):
    @property
    def vertices(self) -> int: ...
    @property
    def edges(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def estimated(self) -> bool: ...
    def cut(self, ways: int, chunks: int, stages: int) -> Cut: ...


@dataclass(frozen=True)
class SizedGraph:
    """A graph that is not here. `edges` counts an undirected edge in both directions."""

    vertices: int
    edges: int
    features: int
    classes: int
    estimated: bool = True

    def cut(self, ways: int, chunks: int, stages: int) -> Cut:
        return estimate_cut(self.vertices, self.edges, ways, ways if stages == 1 else chunks)


class RealGraph:
    """The manifest's graph. Cuts are remembered; METIS gives the chunks that training will have."""

    estimated = False

    def __init__(self, spec: GraphSpec, manifest_folder: Path, note: Callable[[str], None] = lambda _: None):
        # Imported here: a graph by its sizes needs none of it.
        from gnnpipe_trainer.graph.sources import load_graph

        self._note = note
        self._data = load_graph(spec, manifest_folder)
        self.vertices = self._data.num_vertices
        self.features = int(self._data.features.shape[1])
        self.classes = self._data.num_classes
        self._cuts: dict[tuple[int, int], Cut] = {}

    @property
    def edges(self) -> int:
        return int(self._edges[0].size)

    def cut(self, ways: int, chunks: int, stages: int) -> Cut:
        if stages == 1:
            return merge_slots(self._cut(ways, ways))  # the whole graph at once
        if self.edges > MOST_EDGES_TO_CUT_FINELY:
            return split_evenly(self._cut(ways, ways), chunks // ways, self.edges / self.vertices)
        return self._cut(ways, chunks)

    def _cut(self, ways: int, chunks: int) -> Cut:
        if (ways, chunks) not in self._cuts:
            self._cuts[ways, chunks] = self._make(ways, chunks)
        return self._cuts[ways, chunks]

    @cached_property
    def _edges(self) -> tuple[Ints, Ints]:
        from gnnpipe_trainer.graph.edges import clean_edges

        return clean_edges(self._data.edge_index, self.vertices, symmetrise=not self._data.directed)

    @cached_property
    def _rows(self) -> tuple[Ints, Ints]:
        from gnnpipe_trainer.graph.edges import clean_edges, rows

        source, target = self._edges
        if self._data.directed:
            source, target = clean_edges(self._data.edge_index, self.vertices, symmetrise=True)
        return rows(target, source, self.vertices)

    def _make(self, ways: int, chunks: int) -> Cut:
        from gnnpipe_trainer.graph.partition import partition

        self._note(f"Cutting the graph into {chunks} chunks for {ways} ways")
        chunk_of = partition(*self._rows, ways, chunks)
        return count_cut(*self._edges, chunk_of, ways, chunks, self._data.directed)
