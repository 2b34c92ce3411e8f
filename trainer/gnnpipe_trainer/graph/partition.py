"""Which chunk each vertex belongs to: METIS over the ways first, then over the chunks inside each way."""

from __future__ import annotations

import heapq

import numpy as np
import pymetis

from gnnpipe_trainer.graph.data import Ints

# Work of one block on one vertex (dense layer, norm, dropout, forward and backward), in units of the work on
# one of its edges. Measured on one CPU thread: 34, 31 and 40 for widths 64, 128 and 256; the authors'
# regression on GPUs gave 50. METIS then balances compute, not vertices.
VERTEX_WORK = 40
SEED = 0  # of METIS; part of what makes the same graph give the same chunks everywhere
LEAST_VERTICES_PER_PART = 4  # below, METIS has nothing to optimise and leaves parts empty


def partition(indptr: Ints, indices: Ints, ways: int, chunks: int) -> Ints:
    """Chunk of every vertex [V], way-major: way w owns chunks w*K/W to (w+1)*K/W - 1, none empty.

    `indptr`, `indices` is the symmetric graph without self-loops. Needs chunks <= V and ways dividing chunks.
    """
    per_way = chunks // ways
    work = VERTEX_WORK + np.diff(indptr)
    way_of = _parts(indptr, indices, work, ways, least=per_way)
    if per_way == 1:
        return way_of
    chunk_of = np.empty(work.size, dtype=np.int64)
    for way in range(ways):
        members = np.flatnonzero(way_of == way)
        inside = (indptr, indices) if ways == 1 else _subgraph(indptr, indices, members)
        chunk_of[members] = way * per_way + _parts(*inside, work[members], per_way, least=1)
    return chunk_of


def _parts(indptr: Ints, indices: Ints, work: Ints, parts: int, least: int) -> Ints:
    """Part of every vertex, of about equal work, each with at least `least` vertices."""
    vertices = work.size
    if parts == 1:
        return np.zeros(vertices, dtype=np.int64)
    if parts == vertices:
        return np.arange(vertices, dtype=np.int64)
    if indices.size == 0 or vertices < parts * LEAST_VERTICES_PER_PART:
        part_of = _even_ranges(work, parts)
    else:
        _, found = pymetis.part_graph(
            parts,
            pymetis.CSRAdjacency(indptr, indices),
            vweights=work,
            options=pymetis.Options(seed=SEED),
        )
        part_of = np.array(found, dtype=np.int64)
    return _fill_small_parts(part_of, parts, least)


def _even_ranges(work: Ints, parts: int) -> Ints:
    """Consecutive vertices, cut where the running sum of work passes each share."""
    middle = np.cumsum(work) - work / 2
    return np.asarray(middle * parts / work.sum(), dtype=np.int64).clip(0, parts - 1)


def _fill_small_parts(part_of: Ints, parts: int, least: int) -> Ints:
    """METIS may leave a part empty: move vertices there, one by one from whichever part has the most."""
    sizes = np.bincount(part_of, minlength=parts)
    short = np.flatnonzero(sizes < least)
    if short.size == 0:
        return part_of
    part_of = part_of.copy()
    members = [list(np.flatnonzero(part_of == part)) for part in range(parts)]
    largest = [(-int(size), part) for part, size in enumerate(sizes)]
    heapq.heapify(largest)
    for part in short:
        while len(members[part]) < least:
            size, donor = heapq.heappop(largest)
            vertex = members[donor].pop()
            members[part].append(vertex)
            part_of[vertex] = part
            heapq.heappush(largest, (size + 1, donor))
    return part_of


def _subgraph(indptr: Ints, indices: Ints, members: Ints) -> tuple[Ints, Ints]:
    """The graph among `members` (ascending), in their own numbering."""
    vertices = indptr.size - 1
    local = np.full(vertices, -1, dtype=np.int64)
    local[members] = np.arange(members.size)
    row = np.repeat(local, np.diff(indptr))
    column = local[indices]
    inside = (row >= 0) & (column >= 0)
    row, column = row[inside], column[inside]  # still ordered by row: members keep their order
    degree = np.bincount(row, minlength=members.size)
    return np.concatenate(([0], np.cumsum(degree))), column
