"""The aggregation kernel: a weighted sum over the neighbours of a contiguous range of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a sparse matrix in CSR form."""

    offsets: Tensor  # [rows + 1] int32
    columns: Tensor  # [entries] int32
    weights: Tensor  # [entries], dtype of what is aggregated


@torch.no_grad()
def aggregate(block: RowBlock, source: Tensor) -> Tensor:
    """[rows, d] = block [rows, n] x source [n, d].

    embedding_bag over the CSR arrays is the fastest kernel torch has for this on CPU (docs/benchmarks.md) and
    needs no scratch memory.
    """
    if block.columns.numel() == 0:
        return source.new_zeros(block.offsets.numel() - 1, source.shape[1])
    return embedding_bag(
        block.columns,
        source,
        block.offsets,
        mode="sum",
        per_sample_weights=block.weights.to(source.dtype),
        include_last_offset=True,
    )
