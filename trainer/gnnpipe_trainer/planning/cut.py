"""A cut of the graph as the planner sees it: how many rows, edges and border rows each way has in each slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.float64]  # [ways, slots]; whole numbers where they were counted

# Share of a random partition's mirrors that METIS leaves. Reddit in 2, 4, 8 and 16 parts: 0.63, 0.49, 0.37, 0.37.
ESTIMATED_LOCALITY = 0.45
# Share of a random partition's cut edges that METIS leaves, for graphs that nobody has looked at.
ESTIMATED_CUT = 0.5
MOST_MARKS = 500_000_000  # bytes


@dataclass(frozen=True, eq=False)
class Cut:
    """`ways` x `slots` chunks. Forward reads in-edges, backward out-edges; undirected: the same numbers."""

    rows: Counts
    entries: Counts  # in-edges of the rows
    out_entries: Counts
    same_slot: Counts  # of the out-edges: those whose reader runs in the same slot, never stale
    chunk_halo: Counts  # vertices outside the chunk that its in-edges come from
    sends: Counts  # rows that other ways read, once for each of them
    receives: Counts  # rows that are read from other ways
    out_sends: Counts  # the same along out-edges
    out_receives: Counts
    estimated: bool = False

    @property
    def ways(self) -> int:
        return int(self.rows.shape[0])

    @property
    def slots(self) -> int:
        return int(self.rows.shape[1])

    @property
    def stale_edges(self) -> float:
        """The share of edges that read history: of two slots either comes first half of the time."""
        edges = float(self.out_entries.sum())
        return (edges - float(self.same_slot.sum())) / (2 * edges) if edges and self.slots > 1 else 0.0

    @property
    def mirrors(self) -> int:
        """Rows that cross between ways before one aggregation."""
        return round(float(self.receives.sum()))

    @property
    def out_mirrors(self) -> int:
        return round(float(self.out_receives.sum()))


def count_cut(
    source: Ints, target: Ints, chunk_of: Ints, ways: int, chunks: int, directed: bool = False
) -> Cut:
    """Count a cut: edges source -> target [E], the chunk of every vertex [V], chunks numbered way by way."""
    slots = chunks // ways
    source_chunk, target_chunk = chunk_of[source], chunk_of[target]
    sends, receives = _crossings(source, chunk_of, target_chunk, ways, slots)
    out_sends, out_receives = sends, receives
    if directed:
        out_sends, out_receives = _crossings(target, chunk_of, source_chunk, ways, slots)

    def by_chunk(chunk: Ints) -> Counts:
        return np.bincount(chunk, minlength=chunks).astype(np.float64).reshape(ways, slots)

    out_entries = by_chunk(source_chunk)
    same_slot, chunk_halo = out_entries, receives  # where a way is one chunk
    if slots > 1:
        same_slot = by_chunk(source_chunk[source_chunk % slots == target_chunk % slots])
        chunk_halo = _halo(source, chunk_of, target_chunk, chunks).reshape(ways, slots)
    return Cut(
        rows=by_chunk(chunk_of),
        entries=by_chunk(target_chunk),
        out_entries=out_entries,
        same_slot=same_slot,
        chunk_halo=chunk_halo,
        sends=sends,
        receives=receives,
        out_sends=out_sends,
        out_receives=out_receives,
    )


def merge_slots(cut: Cut) -> Cut:
    """The same ways with the whole graph as one slot, as a single stage computes it."""
    fields: dict[str, Any] = {
        name: value.sum(axis=1, keepdims=True) if isinstance(value, np.ndarray) else value
        for name, value in vars(cut).items()
    }
    return Cut(**{**fields, "same_slot": fields["out_entries"], "chunk_halo": fields["receives"]})


def split_evenly(cut: Cut, slots: int, degree: float) -> Cut:
    """Ways that were counted, in slots that were not: even, with borders as METIS usually leaves them."""
    fields: dict[str, Any] = {
        name: np.repeat(value / slots, slots, axis=1) if isinstance(value, np.ndarray) else value
        for name, value in vars(cut).items()
    }
    chunks = cut.ways * slots
    halo = estimate_mirrors(round(float(cut.rows.sum())), degree, chunks) / chunks
    same = fields["out_entries"] * (1 - ESTIMATED_CUT * (1 - 1 / slots))
    return Cut(**{**fields, "same_slot": same, "chunk_halo": np.full_like(same, halo)})


def estimate_cut(vertices: int, edges: int, ways: int, chunks: int, mirrors: float | None = None) -> Cut:
    """A cut of a graph of which only the sizes are known: even chunks, borders as METIS usually leaves them."""
    slots = chunks // ways
    degree = edges / max(1, vertices)
    entries = edges / chunks
    mirrors = estimate_mirrors(vertices, degree, ways) if mirrors is None else mirrors
    halo = estimate_mirrors(vertices, degree, chunks)
    same = entries * (1 - ESTIMATED_CUT * (1 - 1 / slots))

    def even(total: float) -> Counts:
        return np.full((ways, slots), total / chunks)

    return Cut(
        rows=even(vertices),
        entries=even(edges),
        out_entries=even(edges),
        same_slot=even(same * chunks),
        chunk_halo=even(halo),
        sends=even(mirrors),
        receives=even(mirrors),
        out_sends=even(mirrors),
        out_receives=even(mirrors),
        estimated=True,
    )


def estimate_mirrors(vertices: int, degree: float, parts: int) -> float:
    """Expected pairs (vertex, other part that reads it) if METIS does as well here as on the published graphs."""
    if parts == 1:
        return 0.0
    reached = 1 - math.exp(-degree / parts)  # chance that a random neighbour set reaches a given part
    return ESTIMATED_LOCALITY * vertices * (parts - 1) * reached


def _crossings(
    read: Ints, chunk_of: Ints, reader_chunk: Ints, ways: int, slots: int
) -> tuple[Counts, Counts]:
    """Distinct pairs (vertex, way that reads it from elsewhere), counted at home and at the reader. [ways, slots]

    Both are counted in the slot in which the vertex is computed: that is when it is sent.
    """
    shape = (ways, slots)
    if ways == 1:
        return np.zeros(shape), np.zeros(shape)
    pairs = _distinct(read * ways + reader_chunk // slots, chunk_of.size * ways)
    home, reader_way = chunk_of[pairs // ways], pairs % ways
    crosses = home // slots != reader_way
    home, reader_way = home[crosses], reader_way[crosses]
    arrived = reader_way * slots + home % slots
    sends = np.bincount(home, minlength=ways * slots).astype(np.float64).reshape(shape)
    return sends, np.bincount(arrived, minlength=ways * slots).astype(np.float64).reshape(shape)


def _halo(read: Ints, chunk_of: Ints, reader_chunk: Ints, chunks: int) -> Counts:
    """[chunks] distinct vertices outside each chunk that it reads."""
    if chunks == 1:
        return np.zeros(1)
    pairs = _distinct(read * chunks + reader_chunk, chunk_of.size * chunks)
    reader = pairs % chunks
    return np.bincount(reader[chunk_of[pairs // chunks] != reader], minlength=chunks).astype(np.float64)


def _distinct(keys: Ints, below: int) -> Ints:
    """Each key once, ascending. Marks are several times quicker than sorting while there is room for them."""
    if below > MOST_MARKS:
        return np.unique(keys)
    seen = np.zeros(below, dtype=np.bool_)
    seen[keys] = True
    return np.flatnonzero(seen)
