"""One epoch as discrete events: the trainer's own schedule lists, with times instead of tensors."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnpipe_trainer.pipeline.schedule import Action, Move, Work, epoch_schedule
from gnnpipe_trainer.timeline import Row, Span, idle_share, makespan

StageSeconds = Mapping[Work, Sequence[float]]  # by position


@dataclass(frozen=True)
class Epoch:
    """A simulated epoch, one row of spans per stage; the ways of a stage do the same at the same time."""

    rows: list[Row]

    @property
    def seconds(self) -> float:
        return makespan(self.rows)

    @property
    def bubble(self) -> float:
        """Share of all stages' time in which nothing is computed."""
        return idle_share(self.rows)


def simulate(
    stages: Sequence[StageSeconds],
    message_seconds: Sequence[Sequence[float]],
    *,
    ways: int = 1,
    cores: int | None = None,
    split_backward: bool = True,
) -> Epoch:
    """Play the schedules of all stages through.

    `message_seconds[b][p]` is the transfer of position p over the border between stages b and b + 1, in either
    direction. As in the engine, sends do not hold up the sender, receives are posted early, and the messages of one
    direction travel one after the other. `cores`: with more ranks computing than cores, all slow down alike.
    """
    slots = len(stages[0][Work.FORWARD])
    clock = _Clock(len(stages), ways, cores)
    players = [
        _Stage(number, epoch_schedule(len(stages), number, slots, split_backward), costs)
        for number, costs in enumerate(stages)
    ]
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
    return Epoch([player.row for player in players])


_COMPUTED, _ARRIVED = "computed", "arrived"


class _Clock:
    """What happens next. Compute is kept in virtual time, which runs slower when ranks share cores."""

    def __init__(self, stages: int, ways: int, cores: int | None) -> None:
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
        rate = self._rate()
        ends = self.now + (self._computing[0][0] - self._virtual) / rate if self._computing else float("inf")
        if self._travelling and self._travelling[0][0] <= ends:
            end, stage, work, position = heapq.heappop(self._travelling)
            self._go_to(end, rate)
            self.arrived.add((stage, work, position))
            return _ARRIVED, stage
        self._go_to(ends, rate)
        self._virtual, stage = heapq.heappop(self._computing)  # exactly: rounding must not add up
        return _COMPUTED, stage

    def _rate(self) -> float:
        busy = len(self._computing) * self._ways
        return 1.0 if self._cores is None or busy <= self._cores else self._cores / busy

    def _go_to(self, time: float, rate: float) -> None:
        if self._computing:
            self._virtual += (time - self.now) * rate
        self.now = time


class _Stage:
    """One stage on its way through its schedule."""

    def __init__(self, number: int, schedule: list[Action], costs: StageSeconds) -> None:
        self.number, self.costs = number, costs
        self.left = schedule[::-1]  # the next action is the last
        self.row: Row = []
        self._under_way: tuple[Action, float] | None = None

    def computed(self, now: float) -> None:
        assert self._under_way is not None
        action, start = self._under_way
        self.row.append(Span(str(action), start, now))
        self._under_way = None

    def go_on(self, clock: _Clock, message_seconds: Sequence[Sequence[float]]) -> None:
        """Do all that can be done without waiting."""
        while self.left and self._under_way is None:
            action = self.left[-1]
            if action.move is Move.RECV:
                key = (self.number, action.work, action.position)
                if key not in clock.arrived:
                    return
                clock.arrived.remove(key)
            elif action.move is Move.SEND:
                assert action.peer_stage is not None
                border = min(self.number, action.peer_stage)
                clock.send(self.number, action.peer_stage, action, message_seconds[border][action.position])
            else:
                self._under_way = (action, clock.now)
                clock.compute(self.number, self.costs[action.work][action.position])
            self.left.pop()
