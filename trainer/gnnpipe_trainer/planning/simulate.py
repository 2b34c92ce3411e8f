"""Epochs as discrete events: the trainer's own schedule lists, with times instead of tensors."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from gnnpipe_trainer.pipeline.schedule import Action, Move, Work, epoch_schedule
from gnnpipe_trainer.timeline import Row, Span, worked

EQUAL_COSTS: Mapping[Work, float] = {**dict.fromkeys(Work, 1.0), Work.BACKWARD: 2.0}
StageSeconds = Mapping[Work, Sequence[float]]  # by position


@dataclass(frozen=True)
class Cores:
    """Ranks share what computes: how quick each is while so many of them are busy."""

    count: int | None = None  # None: a device for every rank
    crowding: float = 1.0  # how much slower a rank is when all cores are busy: they share caches and memory
    turns: float = (
        1.0  # and beyond its share of the cores when ranks take turns: waits for slices, cold caches
    )
    whole: float = 1.0  # crowding where the whole graph is one slot, which no cache holds

    def for_slots(self, slots: int) -> Cores:
        return replace(self, crowding=self.whole) if slots == 1 else self

    def rate(self, busy: int) -> float:
        """1: as quick as alone."""
        if self.count is None or busy <= 1:
            return 1.0
        filled = (min(busy, self.count) - 1) / max(1, self.count - 1)
        # Whoever wakes up finds no core free and waits for a slice to end, however many are waiting beside it.
        slower = (1 + (self.crowding - 1) * filled) * (self.turns if busy > self.count else 1.0)
        return min(1.0, self.count / busy) / slower


@dataclass(frozen=True)
class Epoch:
    """A simulated epoch, one row of spans per stage; the ways of a stage do the same at the same time."""

    rows: list[Row]
    seconds: float  # from the end of one epoch to the end of the next, on the stage that takes longest
    beside: float = (
        0.0  # seconds of all stages that are not part of a slot: sorting out edges, updating weights
    )

    @property
    def bubble(self) -> float:
        """Share of all stages' time in which nothing is computed."""
        busy = self.beside + sum(seconds for row in self.rows for _, seconds in worked(row))
        return 1 - busy / (self.seconds * len(self.rows)) if self.seconds else 0.0


def simulate(
    stages: Sequence[StageSeconds],
    message_seconds: Sequence[Sequence[float]],
    *,
    ways: int = 1,
    cores: Cores | None = None,
    split_backward: bool = True,
    prepare: Sequence[float] = (),
    end: Sequence[float] = (),
    epochs: int = 1,
) -> Epoch:
    """Play the schedules of all stages through; of several epochs the last is returned.

    `message_seconds[b][p]` is the transfer of position p over the border between stages b and b + 1, in either
    direction. As in the engine, sends do not hold up the sender, receives are posted early, and the messages of one
    direction travel one after the other. `prepare[s]` is what stage s does before it first waits for another, `end[s]`
    what it does after its last slot. A stage begins its next epoch without waiting for the others.
    """
    slots = len(stages[0][Work.FORWARD])
    clock = _Clock(ways, cores or Cores())
    players = []
    for number, costs in enumerate(stages):
        schedule = epoch_schedule(len(stages), number, slots, split_backward)
        extras = (prepare[number] if prepare else 0.0, end[number] if end else 0.0)
        players.append(_Stage(number, epochs * _steps(schedule, *extras), costs))
    for player in players:
        player.go_on(clock, message_seconds)
    while (event := clock.next_event()) is not None:
        kind, number = event
        if kind is _COMPUTED:
            players[number].computed(clock.now)
        players[number].go_on(clock, message_seconds)
    stuck = [player.number for player in players if player.left]
    if stuck:
        raise RuntimeError(f"the schedules of stages {stuck} wait for each other")
    seconds = max(player.ends[-1] - player.ends[-2] for player in players)
    return Epoch([player.rows[-1] for player in players], seconds, sum(player.beside for player in players))


def play(
    stages: int, slots: int, split_backward: bool = True, costs: Mapping[Work, float] = EQUAL_COSTS
) -> list[Row]:
    """One epoch whose slots cost the same on every stage and whose messages take no time."""
    every = {work: [seconds] * slots for work, seconds in costs.items()}
    return simulate([every] * stages, [[0.0] * slots] * (stages - 1), split_backward=split_backward).rows


@dataclass(frozen=True)
class _Beside:
    """Compute that is not part of a slot."""

    seconds: float
    ends_epoch: bool = False


_Step: TypeAlias = Action | _Beside


def _steps(schedule: list[Action], prepare: float, end: float) -> list[_Step]:
    steps: list[_Step] = [*schedule, _Beside(end, ends_epoch=True)]
    first_receive = next((i for i, action in enumerate(schedule) if action.move is Move.RECV), None)
    if prepare and first_receive is not None:
        steps.insert(first_receive, _Beside(prepare))
    return steps


_COMPUTED, _ARRIVED = "computed", "arrived"


class _Clock:
    """What happens next. Compute is kept in virtual time, which runs slower when ranks share cores."""

    def __init__(self, ways: int, cores: Cores) -> None:
        self.now = 0.0
        self.arrived: set[tuple[int, Work, int]] = set()  # (receiving stage, work, position)
        self._virtual = 0.0
        self._ways, self._cores = ways, cores
        self._computing: list[tuple[float, int]] = []  # (virtual end, stage)
        self._travelling: list[tuple[float, int, Work, int]] = []  # (end, receiving stage, work, position)
        self._link_free: dict[tuple[int, int], float] = {}

    def compute(self, stage: int, seconds: float) -> None:
        heapq.heappush(self._computing, (self._virtual + seconds, stage))

    def send(self, stage: int, peer: int, action: Action, seconds: float) -> None:
        start = max(self.now, self._link_free.get((stage, peer), 0.0))
        self._link_free[stage, peer] = start + seconds
        heapq.heappush(self._travelling, (start + seconds, peer, action.work, action.position))

    def next_event(self) -> tuple[str, int] | None:
        """Go on to whatever ends next: (what, the stage that it matters to)."""
        if not self._computing and not self._travelling:
            return None
        rate = self._cores.rate(len(self._computing) * self._ways)
        ends = self.now + (self._computing[0][0] - self._virtual) / rate if self._computing else float("inf")
        if self._travelling and self._travelling[0][0] <= ends:
            end, stage, work, position = heapq.heappop(self._travelling)
            self._go_to(end, rate)
            self.arrived.add((stage, work, position))
            return _ARRIVED, stage
        self._go_to(ends, rate)
        self._virtual, stage = heapq.heappop(self._computing)  # exactly: rounding must not add up
        return _COMPUTED, stage

    def _go_to(self, time: float, rate: float) -> None:
        if self._computing:
            self._virtual += (time - self.now) * rate
        self.now = time


class _Stage:
    """One stage on its way through its epochs."""

    def __init__(self, number: int, steps: list[_Step], costs: StageSeconds) -> None:
        self.number, self.costs = number, costs
        self.left = steps[::-1]  # the next step is the last
        self.rows: list[Row] = [[]]  # of each epoch
        self.ends = [0.0]  # of the epochs, the first of which begins when time does
        self.beside = 0.0  # seconds of the last epoch that are not part of a slot
        self._under_way: tuple[_Step, float] | None = None

    def computed(self, now: float) -> None:
        assert self._under_way is not None
        step, start = self._under_way
        self._under_way = None
        if isinstance(step, Action):
            self.rows[-1].append(Span(str(step), start, now))
            return
        self.beside += now - start
        if step.ends_epoch:
            self.ends.append(now)
        if step.ends_epoch and self.left:
            self.rows.append([])
            self.beside = 0.0

    def go_on(self, clock: _Clock, message_seconds: Sequence[Sequence[float]]) -> None:
        """Do all that can be done without waiting."""
        while self.left and self._under_way is None:
            step = self.left[-1]
            if isinstance(step, _Beside):
                self._compute(step, step.seconds, clock)
            elif step.move is Move.RECV:
                key = (self.number, step.work, step.position)
                if key not in clock.arrived:
                    return
                clock.arrived.remove(key)
            elif step.move is Move.SEND:
                assert step.peer_stage is not None
                border = min(self.number, step.peer_stage)
                clock.send(self.number, step.peer_stage, step, message_seconds[border][step.position])
            else:
                self._compute(step, self.costs[step.work][step.position], clock)
            self.left.pop()

    def _compute(self, step: _Step, seconds: float, clock: _Clock) -> None:
        self._under_way = (step, clock.now)
        clock.compute(self.number, seconds)
