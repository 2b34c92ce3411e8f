"""How a block reads its neighbours, forward and backward, one slot at a time.

Autograd never spans slots. Forward takes what the neighbours say out of the block's buffer as leaves; backward
brings the leaves' gradients to the rows they were read from, if those were fresh. What would flow to rows that history
served is dropped, or comes from the epoch before: backward takes slots in reverse, so a row's gradient is asked for
before its stale readers have come by, and their buffer still holds what they had then.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnnpipe_trainer.kernels import Entry
from gnnpipe_trainer.models.block import Block, ConvBlock, EdgeWeights, State
from gnnpipe_trainer.pipeline.convolution import Convolution
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.history import History
from gnnpipe_trainer.pipeline.leaves import Leaves, publish, whole_graph
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.wire import Ways, nothing_to_wait_for


class Gather(Protocol):
    @property
    def block(self) -> Block: ...
    @property
    def history(self) -> History | None: ...
    @property
    def kept_gradients(self) -> Tensor | None:
        """The buffer of gradients, where the next epoch reads it."""

    def start_epoch(self, freshness: Freshness) -> None: ...
    def entry(self, slot: int | None) -> Entry | None:
        """Where a slot's message may be written to, instead of having it pushed by `read`; None: nowhere."""

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        """`message` may be part of an autograd graph; the leaves are of none."""

    def gradient_place(self, slot: int | None) -> Tensor | None:
        """Where the gradient of what a slot gathered is best written."""

    def read_exact(self, message: Tensor, fill_history: bool) -> Leaves: ...
    def apply(self, slot: int | None, leaves: Leaves, state: State) -> State: ...
    def gradient(self, slot: int | None, leaves: Leaves) -> Tensor | None: ...


class WeightedSum:
    """Weighted sums, the fast path: A B outside autograd, A^T G in backward; only own rows are written."""

    def __init__(self, block: Block, shard: Shard, history: History, ways: Ways, factor: float) -> None:
        assert block.edge_weights is not None
        self.block, self.shard, self.history, self.ways, self.factor = block, shard, history, ways, factor
        self.kind: EdgeWeights = block.edge_weights
        self.matrix = shard.matrix(self.kind, transposed=False)
        self._gradients_of: dict[int | None, Tensor] = {}

    @cached_property
    def gradients(self) -> Tensor:
        """[rows, width] of the sums, as far as slots have come by; made when there is more than one."""
        rows, width = self.shard.outward.rows, self.block.message_width
        return torch.zeros(rows, width, dtype=self.shard.dtype, device=self.shard.device)

    @cached_property
    def average(self) -> Tensor:
        """[rows, width] of the sums' gradients over the epochs; made where history asks for it."""
        return torch.zeros_like(self.gradients)

    @property
    def kept_gradients(self) -> Tensor | None:
        if self.history.averages_gradients:
            return self.average
        return self.gradients if self.history.keeps_gradients else None

    def start_epoch(self, freshness: Freshness) -> None:
        self.freshness = freshness
        if self.history.averages_gradients:
            self.gradients.copy_(self.average)

    def entry(self, slot: int | None) -> Entry | None:
        return self.history.entry(self.shard.inward.rows_of(slot))

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        leaves = self._take(self.history, slot, message, pushed)
        assert leaves.gathered is not None
        if self.history.corrects_mean and not self.freshness.all_fresh:
            weight = self.freshness.stale_weight(self.kind)[self.shard.inward.rows_of(slot)]
            leaves.gathered.addcmul_(weight, self.history.shift.to(weight.dtype))
        return leaves

    def read_exact(self, message: Tensor, fill_history: bool) -> Leaves:
        buffer = whole_graph(self.shard, message)
        leaves = self._take(buffer, None, message)
        if fill_history:
            self.history.seed(buffer.live)
        return leaves

    def _take(self, history: History, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        """Own rows are summed while halo rows are still on their way."""
        rows, arrive = publish(self.shard, history, self.ways, slot, message, pushed)
        gathered = self.matrix.times(history.live, self.shard.inward.rows_of(slot), arrive)
        if gathered.dtype is not message.dtype:
            gathered = gathered.to(message.dtype)
        return Leaves(gathered, rows)

    def apply(self, slot: int | None, leaves: Leaves, state: State) -> State:
        assert leaves.gathered is not None
        return self.block.update(leaves.gathered, leaves.rows, state)

    def gradient(self, slot: int | None, leaves: Leaves) -> Tensor | None:
        side = self.shard.outward
        rows, exchanges = side.rows_of(slot), side.exchanges(slot)
        incoming = leaves.d_gathered
        if self.history.keeps_gradients:
            matrix = self.shard.matrix(self.kind, transposed=True)
        else:
            matrix = self.freshness.backward_matrix(self.kind)
        if incoming is not None and len(incoming) == side.rows:  # the whole graph: no buffer is needed
            if self.history.keeps_gradients:
                self.gradients.copy_(incoming)
                self._blend([slice(None)])
            return _plus(matrix.times(incoming, rows), leaves.d_rows)
        own = self._own_gradients(slot)
        if incoming is None:
            own.zero_()
        elif incoming.data_ptr() != own.data_ptr():
            own.copy_(incoming)
        wait = nothing_to_wait_for
        if exchanges:
            wait = self.ways.swap(
                [(e.way, self.gradients[e.send]) for e in exchanges],
                [(e.way, self.gradients[e.receive]) for e in exchanges],
            )
        gradient = _plus(matrix.times(self.gradients, rows, wait), leaves.d_rows)
        arrived = [rows, *[e.receive for e in exchanges]]
        self._blend(arrived)
        if self.factor != 1.0:  # rows of other slots read these gradients from now on, and count them more
            for part in arrived:
                self.gradients[part] *= self.factor
        return gradient

    def gradient_place(self, slot: int | None) -> Tensor | None:
        """In the buffer that others sum from; a whole graph needs none."""
        return None if slot is None else self._own_gradients(slot)

    def _own_gradients(self, slot: int | None) -> Tensor:
        """A slot's rows of the buffer."""
        if slot not in self._gradients_of:
            self._gradients_of[slot] = self.gradients[self.shard.outward.rows_of(slot)]
        return self._gradients_of[slot]

    def _blend(self, parts: list[slice]) -> None:
        """Take up what has arrived in these rows, for the next epoch."""
        if self.history.averages_gradients:
            for part in parts:
                self.average[part].lerp_(self.gradients[part], 1.0 - self.history.spec.decay)


class ConstantSum:
    """A weighted sum of raw features: the same in every epoch, never stale, computed once."""

    history = None
    kept_gradients = None

    def __init__(self, block: Block, shard: Shard) -> None:
        assert block.edge_weights is not None
        self.block, self.shard = block, shard
        side = shard.inward
        halo = torch.from_numpy(np.array(shard.graph.features[side.halo])).to(shard.device, shard.dtype)
        matrix = shard.matrix(block.edge_weights, transposed=False)
        self.sum = matrix.times(torch.cat([shard.features, halo]), slice(0, side.own))

    def start_epoch(self, freshness: Freshness) -> None:
        pass

    def entry(self, slot: int | None) -> Entry | None:
        return None

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        return Leaves(self.sum[self.shard.inward.rows_of(slot)], message.detach(), constant=True)

    def gradient_place(self, slot: int | None) -> Tensor | None:
        return None

    def read_exact(self, message: Tensor, fill_history: bool) -> Leaves:
        return self.read(None, message)

    def apply(self, slot: int | None, leaves: Leaves, state: State) -> State:
        assert leaves.gathered is not None
        return self.block.update(leaves.gathered, leaves.rows, state)

    def gradient(self, slot: int | None, leaves: Leaves) -> Tensor | None:
        return None


def _plus(gradient: Tensor, more: Tensor | None) -> Tensor:
    return gradient if more is None else gradient.add_(more)


def make_gather(block: Block, shard: Shard, history: History, ways: Ways, factor: float) -> Gather:
    if isinstance(block, ConvBlock):
        return Convolution(block, shard, history, ways, factor)
    return WeightedSum(block, shard, history, ways, factor)
