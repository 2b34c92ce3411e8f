"""The aggregation kernel: a weighted sum over the neighbours of a contiguous range of rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnnpipe_trainer import kernels

SUM = 0  # embedding_bag's number for that mode


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a sparse matrix in CSR form."""

    offsets: Tensor  # [rows + 1] int32
    columns: Tensor  # [entries] int32
    weights: Tensor  # [entries], dtype of what is aggregated

    def keep(self, entries: Tensor) -> RowBlock:
        """The same rows with only the marked entries ([entries] bool)."""
        before = torch.zeros(entries.numel() + 1, dtype=torch.int32, device=entries.device)
        torch.cumsum(entries, 0, dtype=torch.int32, out=before[1:])
        kept = _marked(entries)
        columns, weights = self.columns.index_select(0, kept), self.weights.index_select(0, kept)
        return RowBlock(before.index_select(0, self.offsets), columns, weights)

    def from_position(self, positions: Tensor, position: int) -> RowBlock:
        """Only the entries whose columns stand there or later; positions [n] int32 of the columns."""
        if not kernels.fits(self.weights):
            return self.keep(positions.index_select(0, self.columns) >= position)
        offsets, columns, weights = map(torch.empty_like, (self.offsets, self.columns, self.weights))
        count = kernels.fresh_entries(self.addresses, positions, position, offsets, columns, weights)
        return RowBlock(offsets, columns[:count], weights[:count])

    @cached_property
    def rows(self) -> int:
        return self.offsets.numel() - 1

    @cached_property
    def addresses(self) -> tuple[int, int, int]:
        return self.offsets.data_ptr(), self.columns.data_ptr(), self.weights.data_ptr()

    @cached_property
    def shares(self) -> list[kernels.Rows]:
        """Ranges of rows with about as many entries each, one for each of this rank's threads."""
        threads = torch.get_num_threads()
        if threads == 1:
            return [(0, self.rows)]
        ends = torch.linspace(0, self.columns.numel(), threads + 1)[1:-1].to(self.offsets.dtype)
        inner = torch.searchsorted(self.offsets, ends).tolist()
        return list(zip([0, *inner], [*inner, self.rows], strict=True))


def aggregate(block: RowBlock, source: Tensor) -> Tensor:
    """[rows, d] = block [rows, n] x source [n, d]; outside autograd: `source` wants no gradient.

    weighted_sum.c where it fits; else embedding_bag, the fastest that torch has for it.
    """
    if source.shape[1] >= kernels.LANES and kernels.fits(source, block.weights):
        sums = source.new_empty(block.rows, source.shape[1])
        kernels.weighted_sum(block.addresses, source, sums, block.shares)
        return sums
    if block.columns.numel() == 0:
        return source.new_zeros(block.rows, source.shape[1])
    # Without torch.nn.functional's checks: a pipeline sums thousands of times.
    weights = block.weights.to(source.dtype)
    sums, *_ = torch.embedding_bag(
        source, block.columns, block.offsets, False, SUM, False, weights, include_last_offset=True
    )
    return sums


def _marked(entries: Tensor) -> Tensor:
    """[kept] where the marked entries are; on CPU numpy finds them several times as fast as torch."""
    if entries.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(entries.numpy()))
    return torch.nonzero(entries).flatten()
