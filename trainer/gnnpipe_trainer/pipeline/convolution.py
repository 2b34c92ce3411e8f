"""How a block around any torch-geometric conv reads its neighbours, forward and backward, one slot at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnpipe_trainer.kernels import Entry
from gnnpipe_trainer.models.block import ConvBlock, State
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.history import History
from gnnpipe_trainer.pipeline.leaves import Leaves, publish, whole_graph
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.wire import Ways


@dataclass(frozen=True)
class _Bipartite:
    """One slot's edges as a conv wants them: sources are own rows, then halo rows."""

    sources: Tensor  # [m] int64 buffer rows
    slots: Tensor  # [m] int64 slot of each source
    edges: Tensor  # [2, E] int64 source position -> target position


class Convolution:
    """Any torch-geometric conv: own and halo rows are gathered as one leaf, its gradient is added back."""

    def __init__(self, block: ConvBlock, shard: Shard, history: History, ways: Ways, factor: float) -> None:
        self.block: ConvBlock = block
        self.shard, self.history, self.ways, self.factor = shard, history, ways, factor
        self.gradients = torch.zeros(
            shard.inward.rows, block.message_width, dtype=shard.dtype, device=shard.device
        )
        self._bipartite: dict[int | None, _Bipartite] = {}

    @property
    def kept_gradients(self) -> Tensor | None:
        return self.gradients if self.history.keeps_gradients else None

    def start_epoch(self, freshness: Freshness) -> None:
        self.freshness = freshness

    def entry(self, slot: int | None) -> Entry | None:
        return None

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        _, arrive = publish(self.shard, self.history, self.ways, slot, message)
        arrive()
        bipartite = self._edges(slot)
        rows = self.history.live[bipartite.sources].to(message.dtype)
        if self.history.corrects_mean and slot is not None:
            rows[~self.freshness.fresh_rows(bipartite.slots, slot)] += self.history.shift
        return Leaves(None, rows)

    def gradient_place(self, slot: int | None) -> Tensor | None:
        return None

    def read_exact(self, message: Tensor, fill_history: bool) -> Leaves:
        buffer = whole_graph(self.shard, message)
        _, arrive = publish(self.shard, buffer, self.ways, None, message)
        arrive()
        if fill_history:
            self.history.seed(buffer.live)
        return Leaves(None, buffer.live[self._edges(None).sources])

    def apply(self, slot: int | None, leaves: Leaves, state: State) -> State:
        own = self.shard.inward.rows_of(slot)
        count = own.stop - own.start
        gathered = self.block.convolve(leaves.rows, count, self._edges(slot).edges)
        return self.block.update(gathered, leaves.rows[:count], state)

    def gradient(self, slot: int | None, leaves: Leaves) -> Tensor | None:
        self._add_back(slot, leaves.d_rows)
        side = self.shard.inward
        exchanges = side.exchanges(slot)
        arriving = [
            (e.way, self.gradients.new_empty(e.send.numel(), self.gradients.shape[1])) for e in exchanges
        ]
        wait = self.ways.swap([(e.way, self.gradients[e.receive]) for e in exchanges], arriving)
        wait()
        for exchange, (_, rows) in zip(exchanges, arriving, strict=True):
            self.gradients.index_add_(0, exchange.send, rows)
            self.gradients[exchange.receive] = 0
        own = self.gradients[side.rows_of(slot)]
        gradient = own.clone()
        own.zero_()  # what stale readers add from now on is for the next epoch
        return gradient

    def _add_back(self, slot: int | None, gradient: Tensor | None) -> None:
        if gradient is None:
            return
        bipartite = self._edges(slot)
        if slot is None or self.freshness.all_fresh or self.history.keeps_gradients:
            self.gradients.index_add_(0, bipartite.sources, gradient)
            return
        fresh = self.freshness.fresh_rows(bipartite.slots, slot)
        if self.factor != 1.0:
            gradient = torch.where((bipartite.slots == slot).unsqueeze(1), gradient, gradient * self.factor)
        self.gradients.index_add_(0, bipartite.sources[fresh], gradient[fresh])

    def _edges(self, slot: int | None) -> _Bipartite:
        if slot not in self._bipartite:
            self._bipartite[slot] = self._make_edges(slot)
        return self._bipartite[slot]

    def _make_edges(self, slot: int | None) -> _Bipartite:
        side = self.shard.inward
        rows = side.rows_of(slot)
        columns = side.columns[side.indptr[rows.start] : side.indptr[rows.stop]]
        outside = np.unique(columns[(columns < rows.start) | (columns >= rows.stop)])
        place = np.full(side.rows, -1)
        place[rows] = np.arange(rows.stop - rows.start)
        place[outside] = rows.stop - rows.start + np.arange(len(outside))
        targets = np.repeat(
            np.arange(rows.stop - rows.start), np.diff(side.indptr[rows.start : rows.stop + 1])
        )
        sources = np.concatenate([np.arange(rows.start, rows.stop), outside])
        return _Bipartite(
            torch.from_numpy(sources).to(self.shard.device),
            torch.from_numpy(side.slot_of_row[sources]).to(self.shard.device),
            torch.from_numpy(np.stack([place[columns], targets])).to(self.shard.device),
        )
