"""Which rows are fresh to which slot in this epoch: the one place that knows the order of the slots."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnnpipe_trainer.models.block import EdgeWeights
from gnnpipe_trainer.pipeline.aggregate import RowBlock
from gnnpipe_trainer.pipeline.shard import Matrix, Shard


class FreshMatrix(Matrix):
    """A transposed matrix without the entries whose reader came before the row, cut out slot by slot."""

    def __init__(self, whole: Matrix, position_of_row: Tensor) -> None:
        super().__init__(whole.indptr, whole.columns, whole.weights, whole.own)
        self._whole, self._position_of_row = whole, position_of_row

    def split(self) -> tuple[Matrix, Matrix] | None:
        return self._fresh_halves

    @cached_property
    def _fresh_halves(self) -> tuple[Matrix, Matrix] | None:
        halves = self._whole.split()
        if halves is None:
            return None
        own, halo = halves
        return FreshMatrix(own, self._position_of_row), FreshMatrix(halo, self._position_of_row)

    def _make_block(self, rows: slice) -> RowBlock:
        """All rows of one slot."""
        block = self._whole.block(rows)
        if rows.start == rows.stop:
            return block
        return block.from_position(self._position_of_row, int(self._position_of_row[rows.start]))


class Freshness:
    """A row is fresh to a slot when its own slot stands at the same position or before; else history serves it."""

    def __init__(self, shard: Shard, order: list[int]) -> None:
        self.shard = shard
        self.order = order
        positions = torch.empty(len(order), dtype=torch.int32)
        positions[torch.tensor(order)] = torch.arange(len(order), dtype=torch.int32)
        self.positions = positions.to(shard.device)
        self._backward: dict[EdgeWeights, Matrix] = {}
        self._stale_weight: dict[EdgeWeights, Tensor] = {}

    @property
    def all_fresh(self) -> bool:
        return len(self.order) == 1

    def prepare(self, kinds: set[EdgeWeights]) -> None:
        """Sort out the edges now, while this rank would wait anyway, instead of when backward needs them."""
        for kind in kinds:
            matrix = self.backward_matrix(kind)
            for slot in range(len(self.order)):
                matrix.cut_out(self.shard.outward.rows_of(slot))

    def fresh_rows(self, slots_of_rows: Tensor, slot: int) -> Tensor:
        """[n] bool for rows that are computed in the given slots ([n])."""
        return self.positions[slots_of_rows] <= self.positions[slot]

    def backward_matrix(self, kind: EdgeWeights) -> Matrix:
        """The transposed matrix without edges that read history: they carry no gradient."""
        matrix = self.shard.matrix(kind, transposed=True)
        if self.all_fresh:
            return matrix
        if kind not in self._backward:
            slots = torch.from_numpy(self.shard.outward.slot_of_row).to(self.shard.device)
            self._backward[kind] = FreshMatrix(matrix, self.positions[slots])
        return self._backward[kind]

    def stale_weight(self, kind: EdgeWeights) -> Tensor:
        """[own rows, 1] the total weight with which each row reads history."""
        if kind not in self._stale_weight:
            matrix = self.shard.matrix(kind, transposed=False)
            reader, source = self._entry_positions(kind, transposed=False)
            total = torch.zeros(matrix.weights.numel() + 1, dtype=torch.float64)
            torch.cumsum(torch.where(source > reader, matrix.weights.double(), 0.0), 0, out=total[1:])
            stale = total[matrix.indptr.long()].diff()
            self._stale_weight[kind] = stale.to(matrix.weights.dtype).unsqueeze(1)
        return self._stale_weight[kind]

    def _entry_positions(self, kind: EdgeWeights, transposed: bool) -> tuple[Tensor, Tensor]:
        """[entries] positions of each entry's row and column."""
        rows, columns = self.shard.entry_slots(kind, transposed)
        return self.positions.index_select(0, rows), self.positions.index_select(0, columns)
