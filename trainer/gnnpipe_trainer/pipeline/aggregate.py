"""The aggregation kernel: a weighted sum over the neighbours of a contiguous range of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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


def aggregate(block: RowBlock, source: Tensor) -> Tensor:
    """[rows, d] = block [rows, n] x source [n, d]; outside autograd: `source` wants no gradient.

    embedding_bag over the CSR arrays is the fastest kernel torch has for this on CPU (docs/benchmarks.md) and
    needs no scratch memory. It is called without torch.nn.functional's checks: a pipeline sums thousands of times.
    """
    if block.columns.numel() == 0:
        return source.new_zeros(block.offsets.numel() - 1, source.shape[1])
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
