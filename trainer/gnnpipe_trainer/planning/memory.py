"""Memory of one rank at its fullest, part by part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.pipeline.schedule import LEAD
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.hardware import Hardware
from gnnpipe_trainer.planning.shape import BlockShape, ModelShape
from gnnpipe_trainer.planning.volume import ITEM_BYTES, item_bytes, wire_bytes
from gnnpipe_trainer.staleness.carry import TAILS, Carried, averaged, carried

RECEIVES_AHEAD = 16  # as in pipeline/epoch_run.py, which needs torch to be read
INDEX_BYTES, HOST_INDEX_BYTES = 4, 8  # of the matrices, and of the numpy arrays they are made from
FILE_ITEM_BYTES = 4  # features in the mapped file
SETUP_BYTES_PER_EDGE = 40  # numpy's temporaries while edges are localised and weighed; malloc keeps them
HEAP = 1.12  # what malloc holds over what is in use, as measured: freed pieces between living ones
WORKING_TENSORS = 4  # of a slot's size, alive inside one segment's forward or backward
BACKWARD_TENSORS = (
    2  # of a slot's size for each block, alive until the slot's backward is through, as measured
)


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, by what they hold."""

    baseline: float
    graph: float
    features: float
    history: float
    gradients: float  # buffers of gradients between vertices, not of weights
    activations: float
    buffers: float
    weights: float
    heap: float = 1.0
    setup: float = 0.0  # freed before training, but not given back; training grows into it

    @property
    def total(self) -> int:
        trained = (self.history + self.gradients + self.activations + self.buffers) * self.heap
        fixed = self.baseline + self.graph + self.features + self.weights
        return round(fixed + max(trained, self.setup))


def stage_memory(
    job: GNNPipeJob, plan: Plan, shape: ModelShape, cut: Cut, hardware: Hardware, stage: int
) -> Memory:
    """Of the fullest rank of a stage."""
    rows = (cut.rows + cut.receives).sum(axis=1)
    fullest = {int(rows.argmax()), int(cut.entries.sum(axis=1).argmax())}  # a graph may have a thousand ways
    ranks = [_Rank(job, plan, shape, cut, hardware, stage, way).memory() for way in fullest]
    return max(ranks, key=lambda memory: memory.total)


def kept_columns(
    shape: ModelShape, first: int, count: int, in_history: bool = True, by_hand: bool = True
) -> tuple[int, int]:
    """What a stage keeps from forward to backward: columns for each vertex, and for each edge (of convs).

    in_history: messages lie there, and a state that is one of them costs nothing more.
    """
    blocks = shape.blocks[first : first + count]
    per_vertex = sum(block.saved + (0 if by_hand else block.by_autograd) for block in blocks)
    per_vertex += _kept_states(shape, first, count, in_history)
    per_vertex += shape.encoder.saved if first == 0 else 0
    per_vertex += shape.decoder.saved if first + count == len(shape.blocks) else 0
    return per_vertex, sum(block.saved_per_edge for block in blocks)


def recomputing_columns(
    shape: ModelShape, first: int, count: int, in_history: bool = True
) -> tuple[int, int]:
    """The same where backward computes again what it needs: for each vertex, and for each one that a conv's slot reads.

    Segments keep what they start from: what was gathered, and the state, which only on its arrival is moved to history.
    """
    blocks = shape.blocks[first : first + count]
    per_vertex = sum(block.message_width for block in blocks if not block.constant)
    per_vertex += _arriving(shape, first) + sum(block.widths[0] for block in blocks[:-1])
    if not in_history:
        per_vertex += sum(b.message_width for b in blocks if not b.sends_state and b.edges != "conv")
    elif first > 0 and blocks[0].sends_state:
        per_vertex -= shape.blocks[first - 1].widths[0]
    return per_vertex, sum(block.message_width for block in blocks if block.edges == "conv")


def _kept_states(shape: ModelShape, first: int, count: int, in_history: bool) -> int:
    """Columns of the states before, between and after blocks, and of their messages."""
    blocks = shape.blocks[first : first + count]
    between = [block.state for block in blocks[:-1]]
    kept = _arriving(shape, first) + sum(between) + blocks[-1].state
    if not in_history:
        return kept + sum(block.made for block in blocks)
    before = shape.encoder.state if first == 0 else shape.blocks[first - 1].widths[0]
    return kept - sum(
        state for state, block in zip([before, *between], blocks, strict=True) if block.sends_state
    )


def _arriving(shape: ModelShape, first: int) -> int:
    return shape.encoder.state if first == 0 else shape.blocks[first - 1].border_width


@dataclass(frozen=True)
class _Rank:
    job: GNNPipeJob
    plan: Plan
    shape: ModelShape
    cut: Cut
    hardware: Hardware
    stage: int
    way: int

    def memory(self) -> Memory:
        shape, first, count = self.shape, self.first, self.plan.layers_per_stage[self.stage]
        width = sum(block.message_width for block in self.blocks if not block.constant)
        everything = shape.parameters(0, len(shape.blocks))  # built by every rank, which keeps its part
        return Memory(
            baseline=self.hardware.baseline_bytes,
            graph=self._graph(),
            features=self._features(),
            history=self._history_copies * self.rows * width * self._history_item,
            gradients=self.rows * self._gradient_width * self.item,
            activations=self._activations(),
            buffers=self._buffers(),
            weights=(self._weight_copies * shape.parameters(first, count) + everything) * self.item,
            heap=HEAP if self.on_host else 1.0,
            setup=SETUP_BYTES_PER_EDGE * self.entries if self.on_host else 0.0,
        )

    @property
    def item(self) -> int:
        return item_bytes(self.job)

    @property
    def first(self) -> int:
        return self.plan.first_layer(self.stage)

    @property
    def blocks(self) -> tuple[BlockShape, ...]:
        return self.shape.blocks[self.first : self.first + self.plan.layers_per_stage[self.stage]]

    @property
    def on_host(self) -> bool:
        """On a GPU only its own memory counts: the arrays that matrices are made from stay outside."""
        return self.hardware.memory_bytes is None

    @property
    def own(self) -> float:
        return float(self.cut.rows[self.way].sum())

    @property
    def rows(self) -> float:
        """Of a block's buffer: own rows, and those of other ways that are read."""
        return self.own + float(self.cut.receives[self.way].sum())

    @property
    def entries(self) -> float:
        return float(self.cut.entries[self.way].sum())

    @property
    def _gradient_width(self) -> int:
        """Columns of the buffers that gradients are summed from: a whole graph's are used as they come."""
        whole = self.cut.slots == 1 and self.plan.ways == 1
        kept = [b for b in self.blocks if not b.constant and (b.edges == "conv" or not whole)]
        if self.cut.slots > 1 and self._carried == "average":
            kept += self._summed
        return sum(block.message_width for block in kept)

    @property
    def _summed(self) -> list[BlockShape]:
        return [block for block in self.blocks if block.edges != "conv" and not block.constant]

    @property
    def _carried(self) -> Carried:
        shape, parallelism = self.shape, self.job.spec.parallelism
        return carried(parallelism, shape.traits, self.cut.stale_edges)

    @property
    def _weight_copies(self) -> int:
        """Gradient, Adam's two and the best; averages, and with them the last weights while one is evaluated."""
        mode = averaged(self.job.spec.training.averaging, self.cut.stale_edges)
        return 4 + {"none": 0, "ema": 2, "tail": 1 + len(TAILS)}[mode]

    @property
    def _history_copies(self) -> int:
        if self.cut.slots == 1:
            return 1 if self.plan.ways > 1 else 0  # all fresh: only a place for the rows of other ways
        return 2 if self.job.spec.parallelism.history.mode in ("ema", "frozen") else 1

    @property
    def _history_item(self) -> int:
        narrow = self.cut.slots > 1 and self.job.spec.parallelism.history_precision == "bf16"
        return ITEM_BYTES["bf16"] if narrow else self.item

    @property
    def _in_history(self) -> bool:
        """Whether messages lie there unchanged, so that nobody else need keep them."""
        return self.cut.slots > 1 and self._history_item == self.item

    def _activations(self) -> float:
        parallelism = self.job.spec.parallelism
        of_stage = self.shape, self.first, len(self.blocks)
        by_hand = self.job.spec.training.precision != "bf16"
        (per_vertex, per_edge), per_halo = kept_columns(*of_stage, self._in_history, by_hand), 0
        late = LEAD * self.stage / self.cut.slots if parallelism.split_backward else 0.0
        # Put-off weight gradients keep the gradients that they will be made from.
        waiting = sum(block.widths[0] for block in self.blocks)
        if parallelism.recompute:  # what segments start from, and one segment at a time
            per_vertex, per_halo = recomputing_columns(*of_stage, self._in_history)
            per_edge = 0
            # The gradients of what aggregations gave wait too, in place of what the segment started from.
            waiting += sum(max(0, block.straight - block.border_width) for block in self.blocks)
        per_vertex += round(min(late, 1.0) * waiting)
        halo = float(self.cut.chunk_halo[self.way].sum())
        kept = self.own * per_vertex + halo * per_halo + (self.entries + self.own) * per_edge
        return kept * self.item

    def _buffers(self) -> float:
        """Messages that are announced, arriving or leaving; rows swapped with other ways; a segment's temporaries."""
        last = self.first + len(self.blocks)
        borders = [
            self.shape.blocks[b - 1].border_width
            for b in (self.first, last)
            if 0 < b < len(self.shape.blocks)
        ]
        warms_up = self.job.spec.parallelism.history.warmup_epochs > 0  # then the whole graph is a slot, too
        of_a_slot = np.sum if warms_up else np.max
        ahead = 1 if warms_up else min(RECEIVES_AHEAD, self.cut.slots)
        chunk = float(of_a_slot(self.cut.rows[self.way]))
        swapped = float(of_a_slot((self.cut.sends + self.cut.receives)[self.way]))  # freed after it
        swaps = 2 * swapped * max(block.message_width for block in self.blocks)
        widths = [block.widths[0] for block in self.blocks]
        working = chunk * (WORKING_TENSORS * max(widths) + BACKWARD_TENSORS * sum(widths))
        messages = sum(borders) * chunk * (ahead + 2) + swaps
        return messages * wire_bytes(self.job) + working * self.item

    def _graph(self) -> float:
        """Matrices in both directions, the fresh part of one, and on the host the arrays they were made from."""
        matrix = (self.entries + self.own) * (INDEX_BYTES + self.item)
        halves = 2 if self.plan.ways > 1 else 1  # own rows and halo rows also apart
        total = 0.0
        if self._summed:
            total += matrix * (1 + halves)
            if self.cut.slots > 1 and self._carried == "drop":
                total += matrix * halves
        # Every conv keeps the edges of each slot, and those of the whole graph for exact passes.
        convs = sum(block.edges == "conv" for block in self.blocks)
        total += convs * 2 * 2 * HOST_INDEX_BYTES * self.entries
        if self.on_host:
            mapped = (
                float(self.cut.entries.sum()) * INDEX_BYTES + float(self.cut.rows.sum()) * HOST_INDEX_BYTES
            )
            total += mapped + HOST_INDEX_BYTES * (self.entries + 3 * self.own)
        return total

    def _features(self) -> float:
        if self.stage != 0:
            return 0.0
        copies = self.own * (
            self.item + (FILE_ITEM_BYTES if self.on_host else 0)
        )  # the mapped file is seen too
        if self.blocks[
            0
        ].constant:  # the sum over neighbours, and while it is made own and halo rows together
            copies += (self.own + self.rows) * self.item
        return copies * self.shape.features
