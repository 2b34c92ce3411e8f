"""The schedule as plain data: what each rank does in one epoch, in order.

A *slot* is what one chunk step works on: one chunk of every way. The forward passes of all slots come first,
then the backward passes in exactly the reverse order, because a slot's gradient needs those of every slot that
read it fresh. Nothing here knows torch: lists can be printed, drawn, checked and simulated before anything runs.

    >>> print(" ".join(map(str, epoch_schedule(stages=2, stage=0, slots=2))))
    F0 SEND(F0) F1 SEND(F1) RECV(I1) I1 W1 RECV(I0) I0 W0
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

LEAD = 2  # slots whose weight gradients a stage puts off for each stage before it


class Work(StrEnum):
    FORWARD = "F"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"


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
    backward = _split_backward(stage, slots) if split_backward else _joint_backward(slots)
    actions: list[Action] = []
    for action in [Action(Work.FORWARD, p) for p in range(slots)] + backward:
        source, target = _neighbours(action.work, stages, stage)
        if source is not None:
            actions.append(Action(action.work, action.position, Move.RECV, source))
        actions.append(action)
        if target is not None:
            actions.append(Action(action.work, action.position, Move.SEND, target))
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
        Work.WEIGHT_GRADIENT: (None, None),
    }[work]


def _joint_backward(slots: int) -> list[Action]:
    """Input and weight gradients together: the autograd of an I action does both, so there is no W."""
    return [Action(Work.INPUT_GRADIENT, p) for p in reversed(range(slots))]


def _split_backward(stage: int, slots: int) -> list[Action]:
    """Input gradients first where an earlier stage waits for them; weight gradients a little later, or in the drain.

    Nobody waits for stage 0, which does each W at once. A later one stays LEAD slots ahead of the stage before it,
    so that this never waits for a slot that took longer. No more than that: a W that is put off for long finds what
    it needs in memory, no longer in the cache.
    """
    lag = min(slots, LEAD * stage)
    actions: list[Action] = []
    for done, position in enumerate(reversed(range(slots))):
        actions.append(Action(Work.INPUT_GRADIENT, position))
        if done >= lag:
            actions.append(Action(Work.WEIGHT_GRADIENT, slots - 1 - (done - lag)))
    actions += [Action(Work.WEIGHT_GRADIENT, position) for position in reversed(range(lag))]
    return actions
