"""One way's share of the graph: its rows, the halo rows it reads from other ways, and who needs which of its own.

Local row numbers: the way's own vertices first (0 .. own-1, in chunk order), then its halo, sorted by global
number. Chunks are contiguous and numbered way by way, so what arrives from one chunk of one other way is always
a contiguous range of the halo: it can be received in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.models.block import EdgeWeights
from gnnpipe_trainer.pipeline.aggregate import RowBlock, aggregate

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Exchange:
    """Which rows cross between this way and one other when a slot is computed."""

    way: int
    send: Tensor  # [m] int64: own rows that the other way reads
    receive: slice  # halo rows that arrive from it


class Adjacency:
    """Edges seen from one end: the row reads its columns. Forward reads in-neighbours, backward out-neighbours."""

    def __init__(self, indptr: Ints, columns: NDArray[np.int32], bounds: Ints, ways: int, way: int) -> None:
        slots = (len(bounds) - 1) // ways
        way_bounds = bounds[::slots]
        self.low, self.high = int(way_bounds[way]), int(way_bounds[way + 1])
        self.own = self.high - self.low
        self.slots = slots
        self.bounds = bounds[way * slots : (way + 1) * slots + 1] - self.low
        self.indptr = np.asarray(indptr[self.low : self.high + 1], dtype=np.int64)
        global_columns = np.asarray(columns[self.indptr[0] : self.indptr[-1]], dtype=np.int64)
        self.indptr = self.indptr - self.indptr[0]
        self.halo = _outside(global_columns, self.low, self.high)
        self.columns = self._localise(global_columns)
        self.slot_of_row = self._slots_of_rows(bounds)
        self._rows_of: dict[int | None, slice] = {
            None: slice(0, self.own),
            **{slot: slice(int(self.bounds[slot]), int(self.bounds[slot + 1])) for slot in range(slots)},
        }
        self._plan_exchanges(indptr, columns, bounds, ways, way)

    @property
    def rows(self) -> int:
        """Rows of a buffer: own and halo."""
        return self.own + len(self.halo)

    def rows_of(self, slot: int | None) -> slice:
        """The own rows of a slot; None is the whole graph as one slot."""
        return self._rows_of[slot]

    def exchanges(self, slot: int | None) -> list[Exchange]:
        return self._exchanges[slot]

    def _localise(self, global_columns: Ints) -> Ints:
        inside = (global_columns >= self.low) & (global_columns < self.high)
        return np.where(
            inside, global_columns - self.low, self.own + np.searchsorted(self.halo, global_columns)
        )

    def _slots_of_rows(self, bounds: Ints) -> Ints:
        """[rows] the slot each buffer row is computed in: own rows and halo rows alike."""
        vertices = np.concatenate([np.arange(self.low, self.high), self.halo])
        return (np.searchsorted(bounds, vertices, side="right") - 1) % self.slots

    def _plan_exchanges(
        self, indptr: Ints, columns: NDArray[np.int32], bounds: Ints, ways: int, way: int
    ) -> None:
        self._exchanges: dict[int | None, list[Exchange]] = {slot: [] for slot in [None, *range(self.slots)]}
        for other in range(ways):
            if other == way:
                continue
            low, high = int(bounds[other * self.slots]), int(bounds[(other + 1) * self.slots])
            theirs = _outside(np.asarray(columns[indptr[low] : indptr[high]], dtype=np.int64), low, high)
            needed = theirs[(theirs >= self.low) & (theirs < self.high)] - self.low
            for slot in self._exchanges:
                rows = self.rows_of(slot)
                send = needed[(needed >= rows.start) & (needed < rows.stop)]
                first, last = (low, high) if slot is None else bounds[other * self.slots + slot :][:2]
                receive = self.own + np.searchsorted(self.halo, [first, last])
                self._exchanges[slot].append(
                    Exchange(other, torch.from_numpy(send), slice(int(receive[0]), int(receive[1])))
                )


class Matrix:
    """An Adjacency with weights. Columns are split in two: own rows, which are there at once, and halo rows, which
    may still be on their way from other ways."""

    def __init__(self, indptr: Tensor, columns: Tensor, weights: Tensor, own: int) -> None:
        self.indptr, self.columns, self.weights, self.own = indptr, columns, weights, own
        self._blocks: dict[tuple[int, int], RowBlock] = {}

    def keep(self, entries: Tensor) -> Matrix:
        """The same rows with only the marked entries ([entries] bool)."""
        kept = RowBlock(self.indptr, self.columns, self.weights).keep(entries)
        return Matrix(kept.offsets, kept.columns, kept.weights, self.own)

    def times(self, source: Tensor, rows: slice, arrive: Callable[[], None] = lambda: None) -> Tensor:
        """[rows, d] = these rows x source; `arrive` is called when the halo rows of `source` must be there."""
        halves = self.split()
        if halves is None:
            arrive()
            return aggregate(self.block(rows), source)
        interior, boundary = halves
        product = aggregate(interior.block(rows), source)
        arrive()
        block = boundary.block(rows)
        if block.columns.numel():
            reached = torch.nonzero(block.offsets.diff()).flatten()
            offsets = torch.cat([block.offsets[reached], block.offsets[-1:]])
            product.index_add_(0, reached, aggregate(RowBlock(offsets, block.columns, block.weights), source))
        return product

    def split(self) -> tuple[Matrix, Matrix] | None:
        """Entries in own columns and entries in halo columns; None if there are no halo columns."""
        return self._halves

    @cached_property
    def _halves(self) -> tuple[Matrix, Matrix] | None:
        halo = self.columns >= self.own
        return (self.keep(~halo), self.keep(halo)) if bool(halo.any()) else None

    def cut_out(self, rows: slice) -> None:
        """Now, not when they are first asked for."""
        for part in self.split() or (self,):
            part.block(rows)

    def block(self, rows: slice) -> RowBlock:
        """Every block of the model asks for the same few row ranges: they are cut out once."""
        key = (rows.start, rows.stop)
        if key not in self._blocks:
            self._blocks[key] = self._make_block(rows)
        return self._blocks[key]

    def _make_block(self, rows: slice) -> RowBlock:
        offsets = self.indptr[rows.start : rows.stop + 1]
        entries = slice(int(offsets[0]), int(offsets[-1]))
        return RowBlock(offsets - offsets[0], self.columns[entries], self.weights[entries])


class Shard:
    """The graph as one rank sees it."""

    def __init__(self, graph: ChunkedGraph, way: int, dtype: torch.dtype, device: torch.device) -> None:
        """`dtype` is that of activations: features, messages, gradients."""
        self.graph, self.way, self.dtype, self.device = graph, way, dtype, device
        bounds = np.asarray(graph.bounds)
        self.inward = Adjacency(graph.indptr, graph.indices, bounds, graph.ways, way)
        self.outward = (
            Adjacency(graph.out_indptr, graph.out_indices, bounds, graph.ways, way)
            if graph.directed
            else self.inward
        )
        self.slots = self.inward.slots
        self.vertices = slice(self.inward.low, self.inward.high)
        self._matrices: dict[tuple[EdgeWeights, bool], Matrix] = {}
        self._entry_slots: dict[tuple[EdgeWeights, bool], tuple[Tensor, Tensor]] = {}

    def matrix(self, kind: EdgeWeights, transposed: bool) -> Matrix:
        """Row v lists its sources with their weights; transposed: row u lists its targets with the same weights."""
        key = (kind, transposed)
        if key not in self._matrices:
            self._matrices[key] = self._weigh(kind, transposed)
        return self._matrices[key]

    def entry_slots(self, kind: EdgeWeights, transposed: bool) -> tuple[Tensor, Tensor]:
        """[entries] the slots of each entry's row and column, to tell fresh entries from stale ones."""
        key = (kind, transposed)
        if key not in self._entry_slots:
            matrix = self.matrix(kind, transposed)
            slots = torch.from_numpy(self._side(transposed).slot_of_row).to(self.device, torch.int32)
            counts = matrix.indptr.diff().long()
            rows = torch.repeat_interleave(slots[: counts.numel()], counts)
            self._entry_slots[key] = rows, slots[matrix.columns.long()]
        return self._entry_slots[key]

    def _side(self, transposed: bool) -> Adjacency:
        return self.outward if transposed else self.inward

    @cached_property
    def features(self) -> Tensor:
        return self._own(self.graph.features).to(self.dtype)

    @cached_property
    def labels(self) -> Tensor:
        labels = self._own(self.graph.labels)
        return labels.to(self.dtype) if labels.is_floating_point() else labels

    @cached_property
    def masks(self) -> dict[str, Tensor]:
        graph = self.graph
        return {
            "train": self._own(graph.train_mask),
            "val": self._own(graph.val_mask),
            "test": self._own(graph.test_mask),
        }

    def _own(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.array(array[self.vertices])).to(self.device)

    def _weigh(self, kind: EdgeWeights, transposed: bool) -> Matrix:
        side = self._side(transposed)
        indptr, columns = side.indptr, side.columns
        if kind == "sym":
            indptr, columns = _with_diagonal(indptr, columns)
        vertices = np.concatenate([np.arange(side.low, side.high), side.halo])
        degree = np.asarray(self.graph.in_degree, dtype=np.float64)[vertices]
        row_degree = np.repeat(degree[: side.own], np.diff(indptr))
        if kind == "sym":
            weights = 1.0 / np.sqrt((row_degree + 1) * (degree[columns] + 1))
        elif kind == "mean":
            weights = 1.0 / np.maximum(degree[columns] if transposed else row_degree, 1.0)
        else:
            weights = np.ones(len(columns))
        return Matrix(
            torch.from_numpy(indptr.astype(np.int32)).to(self.device),
            torch.from_numpy(columns.astype(np.int32)).to(self.device),
            torch.from_numpy(weights).to(self.device, self.dtype),
            side.own,
        )


def _outside(columns: Ints, low: int, high: int) -> Ints:
    return np.unique(columns[(columns < low) | (columns >= high)])


def _with_diagonal(indptr: Ints, columns: Ints) -> tuple[Ints, Ints]:
    """Every row also lists itself, in front."""
    rows = len(indptr) - 1
    return indptr + np.arange(rows + 1), np.insert(columns, indptr[:-1], np.arange(rows))
