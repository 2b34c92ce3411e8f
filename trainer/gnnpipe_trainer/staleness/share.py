"""How much of what vertices read is history: the stale share of the edge weight."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnpipe_trainer.models.block import EdgeWeights
from gnnpipe_trainer.pipeline.shard import Shard


class StaleShare:
    """The weight between each two slots is added up once; an epoch's share is then a matter of its order."""

    def __init__(self, shard: Shard, kind: EdgeWeights | None) -> None:
        """`kind` as the model's blocks weigh edges; None, for convs of their own, counts every edge once."""
        self._weights = _between_slots(shard, kind)

    def weigh(self, order: list[int]) -> tuple[float, float]:
        """The weight that own rows read from history when slots come in this order, and that of all edges."""
        if len(order) == 1:  # the whole graph at once
            return 0.0, float(self._weights.sum())
        positions = np.empty(len(order), dtype=np.int64)
        positions[order] = np.arange(len(order))
        stale = positions[None, :] > positions[:, None]
        return float(self._weights[stale].sum()), float(self._weights.sum())

    def expect(self) -> tuple[float, float]:
        """The same on average over all orders: of two slots either comes first half of the time."""
        total = float(self._weights.sum())
        return (total - float(np.trace(self._weights))) / 2, total


def _between_slots(shard: Shard, kind: EdgeWeights | None) -> NDArray[np.float64]:
    """[slots, slots] the summed weight of edges by reader and source; slot by slot, to need little memory."""
    side = shard.inward
    indptr, columns = side.indptr, side.columns
    weights = None
    if kind is not None:
        matrix = shard.matrix(kind, transposed=False)
        indptr, columns = matrix.indptr.cpu().numpy(), matrix.columns.cpu().numpy()
        weights = matrix.weights.float().cpu().numpy()
    found = np.zeros((side.slots, side.slots))
    for slot in range(side.slots):
        rows = side.rows_of(slot)
        entries = slice(int(indptr[rows.start]), int(indptr[rows.stop]))
        sources = side.slot_of_row[columns[entries]]
        found[slot] = np.bincount(sources, None if weights is None else weights[entries], side.slots)
    return found
