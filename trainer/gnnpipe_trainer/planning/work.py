"""How much work each action of the schedule is, counted in the units of `Costs`, and how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gnnpipe_api.job import ParallelismSpec
from gnnpipe_trainer.pipeline.schedule import Work
from gnnpipe_trainer.planning.cut import Counts, Cut
from gnnpipe_trainer.planning.hardware import Costs, Hardware, Link
from gnnpipe_trainer.planning.shape import BlockShape, EndShape, ModelShape
from gnnpipe_trainer.staleness.carry import Carried, carried

Amounts = dict[
    str, Counts
]  # by field of Costs: units of work [ways, slots]; column p is the slot at position p

# Columns written per column of a message: when a slot's rows are pushed into history, and of the sum itself.
PUSH_PASSES = {"ema": 2, "frozen": 2, "previous": 1, "shift": 3}
SUM_PASSES = 1

CALL = 0.25  # of a block's fixed cost, for each element-wise operation
SWAP_CALLS = 12  # operations that a block calls for a swap, and to sum what came apart from own rows
SORT_HALVES = 2.0  # with several ways what is fresh is also sorted into own and halo columns


@dataclass(frozen=True)
class StageWork:
    """One stage's blocks and what the manifest says about running them."""

    shape: ModelShape
    first: int
    count: int
    parallelism: ParallelismSpec

    @property
    def blocks(self) -> tuple[BlockShape, ...]:
        return self.shape.blocks[self.first : self.first + self.count]

    @property
    def ends(self) -> list[EndShape]:
        ends = [self.shape.encoder] if self.first == 0 else []
        return ends + ([self.shape.decoder] if self.first + self.count == len(self.shape.blocks) else [])

    @property
    def _steps(self) -> float:
        """Blocks, as far as their fixed cost goes: it grows with the operations that are called for each.

        A constant sum is read, not computed; encoder and loss cost a part of a block too.
        """
        calls = CALL * sum(block.calls for block in self.blocks)
        encodes = self.first == 0 and self.shape.encoder.parameters > 0
        constant = sum(block.constant for block in self.blocks)
        loses = self.first + self.count == len(self.shape.blocks)
        return self.count + calls + 0.5 * encodes - 0.5 * constant + 0.75 * loses

    def amounts(self, cut: Cut) -> dict[Work, Amounts]:
        """Units of work of every slot, by action; which of them a slot takes is the schedule's to say."""
        forward, backward, weights = self._forward(cut), self._backward(cut), self._weights(cut)
        if self.parallelism.recompute:
            for unit in ("multiply", "row", "random", "conv"):
                backward[unit] = backward[unit] + forward[unit]
        return {
            Work.FORWARD: forward,
            Work.INPUT_GRADIENT: backward,
            Work.WEIGHT_GRADIENT: weights,
            Work.BACKWARD: _joined(backward, weights),
        }

    def all_amounts(self, cut: Cut) -> list[Amounts]:
        """Of an epoch, however backward is split."""
        amounts = self.amounts(cut)
        return [amounts[Work.FORWARD], amounts[Work.BACKWARD]]

    def entries_to_sort_out(self, cut: Cut) -> float:
        """Edges of the fullest way that each epoch tells fresh from stale, once for all blocks and slots."""
        summed = any(block.edges != "conv" and not block.constant for block in self.blocks)
        if cut.slots == 1 or not summed or self._carried(cut) != "drop":
            return 0.0
        halves = SORT_HALVES if cut.ways > 1 else 1.0
        return float(cut.out_entries.sum(axis=1).max()) * halves

    def _carried(self, cut: Cut) -> Carried:
        """Where stale edges carry nothing back, they are left out of the sum of gradients."""
        return carried(self.parallelism, self.shape.traits, cut.stale_edges)

    def _forward(self, cut: Cut) -> Amounts:
        amounts = _none(cut)
        push = PUSH_PASSES[self.parallelism.history.mode] if cut.slots > 1 else 0
        for block in self.blocks:
            width = block.message_width
            _multiply(amounts, cut, block.multiplies)
            amounts["random"] += cut.rows * block.dropped
            amounts["row"] += cut.rows * block.passes
            if not block.constant:
                amounts["push"] += cut.rows * push * width
                amounts["row"] += cut.rows * SUM_PASSES * width
                amounts[_unit(block)] += _entries(block, cut) * width
                amounts["read"] += cut.chunk_halo * width
        for end in self.ends:
            _multiply(amounts, cut, end.multiplies)
            amounts["random"] += cut.rows * end.dropped
            amounts["row"] += cut.rows * end.passes
        amounts["forward_block"] += self._steps
        return amounts

    def _backward(self, cut: Cut) -> Amounts:
        amounts = _none(cut)
        fresh = _fresh(cut) if self._carried(cut) == "drop" else cut.out_entries
        for index, block in enumerate(self.blocks):
            raw_features = self.first + index == 0 and self.shape.encoder.parameters == 0
            multiplies = 0 if raw_features else block.multiplies
            _multiply(amounts, cut, multiplies)
            amounts["row"] += cut.rows * (block.passes + block.more_back)
            if not block.constant:
                # What the sum's gradient is added to; or it goes to where other slots will read it.
                taken = "push" if cut.slots > 1 else "row" if block.straight else None
                if taken:
                    amounts[taken] += cut.rows * block.message_width
                amounts["row"] += cut.rows * SUM_PASSES * block.message_width
                entries = fresh
                if block.edges == "conv":
                    entries = _entries(block, cut)
                amounts[_unit(block)] += entries * block.message_width
                amounts["read"] += cut.chunk_halo * block.message_width
        for end in self.ends:
            multiplies = 0 if end is self.shape.encoder else end.multiplies
            _multiply(amounts, cut, multiplies)
            amounts["row"] += cut.rows * end.passes
        amounts["backward_block"] += self._steps
        return amounts

    def _weights(self, cut: Cut) -> Amounts:
        amounts = _none(cut)
        for multiplies in [part.multiplies for part in self.blocks] + [end.multiplies for end in self.ends]:
            _multiply(amounts, cut, multiplies)
        amounts["weight_block"] += self._steps
        return amounts

    def swap_amounts(self, cut: Cut) -> dict[Work, Amounts]:
        """What ways compute besides, to sum own rows while those of others travel: not what the messages cost.

        Rows that others read are picked out, and what comes from others is summed apart and then added. Who reads
        other ways is read by them where edges go both ways. A single slot's own rows are copied next to the halo's.
        """
        push = PUSH_PASSES[self.parallelism.history.mode]
        width = sum(block.message_width for block in self.blocks if not block.constant)
        calls = CALL * SWAP_CALLS * sum(not block.constant for block in self.blocks)
        forward, backward = _none(cut), _none(cut)
        for amounts, sends in ((forward, cut.sends), (backward, cut.out_sends)):
            amounts["row"] += (sends + 2 * np.minimum(sends, cut.rows)) * width
            if cut.slots == 1:
                amounts["push"] += cut.rows * width
        if cut.slots > 1:
            forward["push"] += cut.receives * push * width
        forward["forward_block"] += calls
        backward["backward_block"] += calls
        return {Work.FORWARD: forward, Work.INPUT_GRADIENT: backward, Work.BACKWARD: backward}


def seconds(amounts: Amounts, costs: Costs) -> Counts:
    """[ways, slots]"""
    parts: list[Counts] = [getattr(costs, unit) * amount for unit, amount in amounts.items()]
    return np.asarray(sum(parts))


def stage_seconds(
    stage: StageWork, cut: Cut, hardware: Hardware, wire_bytes: int, ranks: int
) -> dict[Work, list[float]]:
    """Seconds of each action at each position; the ways of a stage wait for each other, so the slowest counts."""
    # Others compute while a rank waits: on shared cores a wait takes no longer than elsewhere.
    waiting = hardware.cores.for_slots(cut.slots).rate(ranks)
    besides = stage.swap_amounts(cut) if cut.ways > 1 and hardware.overlap else {}
    slowest = {
        work: seconds(_joined(amounts, besides.get(work, _none(cut))), hardware.costs).max(axis=0)
        for work, amounts in stage.amounts(cut).items()
    }
    if cut.ways > 1:
        for work, sends, receives in (
            (Work.FORWARD, cut.sends, cut.receives),
            (Work.INPUT_GRADIENT, cut.out_sends, cut.out_receives),
            (Work.BACKWARD, cut.out_sends, cut.out_receives),
        ):
            rows = np.maximum(sends, receives).max(axis=0)
            handling, waits = _swap_seconds(stage, cut, rows, hardware, wire_bytes)
            slowest[work] = slowest[work] + handling + waits * waiting
    return {work: list(map(float, values)) for work, values in slowest.items()}


def _swap_seconds(
    stage: StageWork, cut: Cut, rows: Counts, hardware: Hardware, wire_bytes: int
) -> tuple[Counts, Counts]:
    """[slots] what a core does for the swaps of one pass, and waits: own rows are summed while halo rows travel."""
    link: Link = hardware.exchange(cut.ways)
    handling, waits = np.zeros(cut.slots), np.zeros(cut.slots)
    own_entries = (cut.entries - cut.receives).clip(min=0).max(axis=0)
    for block in stage.blocks:
        if block.constant:
            continue
        size = rows * block.message_width * wire_bytes
        handling += 2 * ((cut.ways - 1) * hardware.costs.swap_message + size * hardware.costs.swap_byte)
        swap = link.latency_seconds + size / link.bytes_per_second
        if hardware.overlap and block.edges != "conv":
            swap = swap - own_entries * block.message_width * hardware.costs.edge
        waits += np.maximum(swap, 0)
    return handling, waits


def _none(cut: Cut) -> Amounts:
    units = ("multiply", "dense", "edge", "conv", "row", "push", "read", "random")
    blocks = ("forward_block", "backward_block", "weight_block")
    return {unit: np.zeros_like(cut.rows) for unit in (*units, *blocks)}


def _multiply(amounts: Amounts, cut: Cut, multiplies: int) -> None:
    """A dense product of every vertex."""
    amounts["multiply"] += cut.rows * multiplies
    amounts["dense"] += cut.rows * _dense_columns(multiplies)


def _dense_columns(multiplies: int) -> float:
    """Columns that go in and out of a dense layer, as if it were square."""
    return 2 * math.sqrt(multiplies)


def _unit(block: BlockShape) -> str:
    return "conv" if block.edges == "conv" else "edge"


def _entries(block: BlockShape, cut: Cut) -> Counts:
    """With symmetric weights and in attention a vertex also reads itself."""
    return cut.entries + cut.rows if block.edges in ("sym", "conv") else cut.entries


def _fresh(cut: Cut) -> Counts:
    """Edges that carry a gradient back: to readers in the same slot, and to those that run later."""
    if cut.slots == 1:
        return cut.out_entries
    later = np.arange(cut.slots - 1, -1, -1) / (cut.slots - 1)
    return cut.same_slot + (cut.out_entries - cut.same_slot) * later


def _joined(one: Amounts, other: Amounts) -> Amounts:
    return {unit: one[unit] + other[unit] for unit in one}
