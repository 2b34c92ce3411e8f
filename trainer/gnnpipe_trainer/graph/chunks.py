"""The graph as the pipeline wants it: cleaned, cut into chunks, renumbered so that a chunk is a range."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnpipe_trainer.graph.data import BadGraph, Bools, Floats, GraphData, Ints
from gnnpipe_trainer.graph.edges import Indices, clean_edges, csr, distinct, rows
from gnnpipe_trainer.graph.partition import partition


@dataclass(frozen=True, eq=False)
class ChunkedGraph:
    """V vertices in chunk order: chunk c is bounds[c] to bounds[c+1], way w owns K/W chunks in a row.

    Rows of `indptr`/`indices` are in-edges: row v lists the sources u of its edges u -> v, ascending.
    Rows of `out_indptr`/`out_indices` are out-edges; for an undirected graph the very same arrays.
    """

    ways: int
    directed: bool
    num_classes: int
    bounds: Ints  # [K + 1]
    permutation: Ints  # [V] original vertex of each vertex here
    indptr: Ints  # [V + 1]
    indices: Indices  # [E]
    out_indptr: Ints  # [V + 1]
    out_indices: Indices  # [E]
    in_degree: Ints  # [V]
    features: Floats  # [V, F]
    labels: npt.NDArray[Any]  # [V] int64, or [V, C] float32 (multi-label)
    train_mask: Bools  # [V]
    val_mask: Bools  # [V]
    test_mask: Bools  # [V]
    content_hash: str  # of all of the above: equal on two ranks exactly when they train on the same graph

    @property
    def num_vertices(self) -> int:
        return int(self.permutation.size)

    @property
    def num_edges(self) -> int:
        """Edges after cleaning; an undirected one counts in both directions."""
        return int(self.indices.size)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])

    @property
    def num_chunks(self) -> int:
        return int(self.bounds.size - 1)

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    def chunk(self, c: int) -> slice:
        """Vertices of chunk c."""
        if not 0 <= c < self.num_chunks:
            raise IndexError(f"chunk {c} of {self.num_chunks}")
        return slice(int(self.bounds[c]), int(self.bounds[c + 1]))

    def way(self, w: int) -> slice:
        """Vertices of all chunks of way w."""
        return self.part(w, self.ways)

    def part(self, p: int, parts: int) -> slice:
        """Vertices of part p when the chunks, in order, are dealt to `parts` equal groups."""
        if parts < 1 or self.num_chunks % parts:
            raise ValueError(f"{self.num_chunks} chunks cannot be dealt evenly to {parts} parts")
        per_part = self.num_chunks // parts
        return slice(int(self.bounds[p * per_part]), int(self.bounds[(p + 1) * per_part]))

    def chunk_of(self, vertices: npt.NDArray[Any]) -> Ints:
        """Chunk of each of the given vertices."""
        return np.searchsorted(self.bounds, vertices, side="right") - 1

    def halo(self, c: int) -> Ints:
        """Vertices outside chunk c that its in-edges come from; ascending, each once."""
        return self.sources_outside(self.chunk(c))

    def sources_outside(self, vertices: slice) -> Ints:
        """Vertices outside a range that its in-edges come from; ascending, each once."""
        sources = self.indices[self.indptr[vertices.start] : self.indptr[vertices.stop]].astype(np.int64)
        return distinct(sources[(sources < vertices.start) | (sources >= vertices.stop)])

    def cut_edges(self) -> int:
        """Edges between different chunks."""
        return int((self._source_chunks() != self._target_chunks()).sum())

    def mirrors(self, parts: int | None = None) -> int:
        """Pairs (vertex, part) where a part needs a vertex of another part; `parts` divides the chunks.

        Graph parallelism over `parts` ranks moves this many rows before each aggregation.
        """
        parts = self.ways if parts is None else parts
        return sum(self.sources_outside(self.part(p, parts)).size for p in range(parts))

    def stale_share(self) -> float:
        """Expected share of edges that read history when chunks run in random order.

        An edge is stale when its source's chunk runs later: half of the edges between chunks. The i-th chunks
        of all ways run together and are fresh to each other.
        """
        if self.num_edges == 0:
            return 0.0
        turns = self.num_chunks // self.ways
        later_or_earlier = self._source_chunks() % turns != self._target_chunks() % turns
        return float(later_or_earlier.mean()) / 2

    def _source_chunks(self) -> Ints:
        return self.chunk_of(self.indices)

    def _target_chunks(self) -> Ints:
        edges_per_chunk = np.diff(self.indptr[self.bounds])
        return np.repeat(np.arange(self.num_chunks), edges_per_chunk)


def cut(data: GraphData, ways: int, chunks: int) -> ChunkedGraph:
    """Clean, partition and renumber; the same input always gives the same chunks."""
    vertices = data.num_vertices
    if ways < 1 or chunks < 1 or chunks % ways:
        raise BadGraph(
            f"spec.parallelism: chunks is {chunks} and ways is {ways}, but ways must divide chunks"
        )
    if chunks > vertices:
        raise BadGraph(
            f"spec.parallelism.chunks is {chunks}, but {data.name} has only {vertices} vertices; "
            f"choose at most {vertices} chunks"
        )
    source, target = clean_edges(data.edge_index, vertices, symmetrise=not data.directed)
    both_ways = clean_edges(data.edge_index, vertices, symmetrise=True) if data.directed else (source, target)
    chunk_of = partition(*rows(both_ways[1], both_ways[0], vertices), ways, chunks)

    permutation = np.argsort(chunk_of, kind="stable")  # original order is kept inside a chunk
    place = np.empty(vertices, dtype=np.int64)
    place[permutation] = np.arange(vertices)
    source, target = place[source], place[target]
    indptr, indices = csr(target, source, vertices)
    out_indptr, out_indices = csr(source, target, vertices) if data.directed else (indptr, indices)
    bounds = np.concatenate(([0], np.cumsum(np.bincount(chunk_of, minlength=chunks))))
    arrays: dict[str, Any] = {
        "bounds": bounds.astype(np.int64),
        "permutation": permutation.astype(np.int64),
        "indptr": indptr,
        "indices": indices,
        "out_indptr": out_indptr,
        "out_indices": out_indices,
        "in_degree": np.diff(indptr),
        "features": data.features[permutation],
        "labels": data.labels[permutation],
        "train_mask": data.train_mask[permutation],
        "val_mask": data.val_mask[permutation],
        "test_mask": data.test_mask[permutation],
    }
    facts: dict[str, Any] = {"ways": ways, "directed": data.directed, "num_classes": data.num_classes}
    return ChunkedGraph(**facts, **arrays, content_hash=_content_hash(facts, arrays))


def _content_hash(facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    for key, array in sorted(arrays.items()):
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
