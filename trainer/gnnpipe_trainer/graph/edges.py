"""Lists of edges: without self-loops and duplicates, and as rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnpipe_trainer.graph.data import Ints

Indices = npt.NDArray[np.int32]


def clean_edges(edge_index: Ints, vertices: int, *, symmetrise: bool) -> tuple[Ints, Ints]:
    """Sources and targets without self-loops and duplicates, ordered by target, then source."""
    source, target = edge_index
    keep = source != target
    source, target = source[keep], target[keep]
    keys = target * vertices + source
    if symmetrise:
        keys = np.concatenate((keys, source * vertices + target))
    keys = distinct(keys)
    return keys % vertices, keys // vertices


def distinct(values: Ints) -> Ints:
    """Each value once, ascending; sorts `values` in place.

    Several times as fast as numpy.unique, which hashes whole numbers, and without a copy of the graph.
    """
    values.sort()
    first = np.ones(values.size, dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


def csr(row: Ints, column: Ints, vertices: int) -> tuple[Ints, Indices]:
    """Row pointers [V + 1] and ascending columns [E] of unordered edges."""
    keys = row * vertices + column
    keys.sort()
    indptr, columns = rows(keys // vertices, keys % vertices, vertices)
    return indptr, columns.astype(np.int32)


def rows(row: Ints, column: Ints, vertices: int) -> tuple[Ints, Ints]:
    """Row pointers [V + 1] and columns [E] of edges that are ordered by row already."""
    indptr = np.zeros(vertices + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=vertices), out=indptr[1:])
    return indptr, column
