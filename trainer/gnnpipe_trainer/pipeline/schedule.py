"""The schedule as plain data: what each rank does in one epoch, in order.

A *slot* is what one chunk step works on: one chunk of every way. The forward passes of all slots come first,
then the backward passes in exactly the reverse order, because a slot's gradient needs those of every slot that
read it fresh. Nothing here knows torch: lists can be printed, drawn, checked and simulated before anything runs.

    >>> print(" ".join(map(str, epoch_schedule(stages=2, stage=0, slots=2))))
    F0 SEND(F0) F1 SEND(F1) RECV(I1) B1 RECV(I0) B0
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEAD = 3  # slots whose weight gradients a stage puts off for each stage before it


class Work(StrEnum):
    FORWARD = "F"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    BACKWARD = "B"  # both in one go


class Move(StrEnum):
    SEND = "SEND"
    RECV = "RECV"


@dataclass(frozen=True)
class Action:
    """One thing a rank does. `position` counts slots in this epoch's order, not chunk numbers."""

    work: Work
    position: int
    move: Move | None = None  # None: compute; else the transfer of what that work made
    peer_stage: int | None = None

    def __str__(self) -> str:
        name = f"{self.work}{self.position}"
        return f"{self.move}({name})" if self.move else name


def slot_count(stages: int, ways: int, chunks: int) -> int:
    """How many slots an epoch has.

    One stage has nothing to overlap with, so it takes the whole graph as one slot: every chunk is fresh to every
    other, and training is exact.
    """
    return 1 if stages == 1 else chunks // ways


def slot_order(slots: int, seed: int, epoch: int, shuffle: bool) -> list[int]:
    """Which slot stands at which position in this epoch; the same on every rank."""
    order = list(range(slots))
    if shuffle:
        Random(f"{seed}/{epoch}").shuffle(order)
    return order


def epoch_schedule(stages: int, stage: int, slots: int, split_backward: bool = True) -> list[Action]:
    """One training epoch of one stage (every way of a stage does the same)."""
    late = min(slots, LEAD * stage) if split_backward else 0
    actions: list[Action] = []
    for action in [Action(Work.FORWARD, p) for p in range(slots)] + _backward(slots, late):
        carried = Work.FORWARD if action.work is Work.FORWARD else Work.INPUT_GRADIENT
        source, target = _neighbours(action.work, stages, stage)
        if source is not None:
            actions.append(Action(carried, action.position, Move.RECV, source))
        actions.append(action)
        if target is not None:
            actions.append(Action(carried, action.position, Move.SEND, target))
    return actions


def exact_schedule(stages: int, stage: int) -> list[Action]:
    """One pass over the whole graph as a single slot, forward only: evaluation and the first history."""
    return [a for a in epoch_schedule(stages, stage, slots=1) if a.work is Work.FORWARD]


def ideal_bubble(stages: int, slots: int) -> float:
    """The textbook's idle fraction of a pipeline whose slots all take the same time."""
    return (stages - 1) / (slots + stages - 1)


def _neighbours(work: Work, stages: int, stage: int) -> tuple[int | None, int | None]:
    """The stages this work's input comes from and its output goes to."""
    before = stage - 1 if stage > 0 else None
    after = stage + 1 if stage < stages - 1 else None
    return {
        Work.FORWARD: (before, after),
        Work.INPUT_GRADIENT: (after, before),
        Work.BACKWARD: (after, before),
        Work.WEIGHT_GRADIENT: (None, None),
    }[work]


def _backward(slots: int, late: int) -> list[Action]:
    """In reverse order. The weight gradients of the first `late` slots are put off to the end, where a stage has time.

    So a stage is ahead of the one before it, which then need not wait for every slot that takes longer. No more than
    that is put off: a weight gradient that is made later finds what it needs in memory, no longer in the cache.
    """
    first, others = range(slots - 1, slots - 1 - late, -1), range(slots - 1 - late, -1, -1)
    return [
        *(Action(Work.INPUT_GRADIENT, p) for p in first),
        *(Action(Work.BACKWARD, p) for p in others),
        *(Action(Work.WEIGHT_GRADIENT, p) for p in first),
    ]
