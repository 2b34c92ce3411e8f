"""Who does what when: a schedule played through with given costs, or as it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gnnpipe_trainer.pipeline.schedule import Action, Move, Work, epoch_schedule

EQUAL_COSTS: Mapping[Work, float] = {Work.FORWARD: 1.0, Work.INPUT_GRADIENT: 1.0, Work.WEIGHT_GRADIENT: 1.0}

WAIT = "wait "  # begins the names of spans in which a rank waited for the wire


@dataclass(frozen=True)
class Span:
    """Something that a rank did from `start` to `end`, in seconds (or whatever unit the costs are in)."""

    name: str  # as the schedule prints it: F3, I3, W3, RECV(F3), SEND(F3); or what else took time
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


Row = list[Span]  # one rank's, by start


def play(
    stages: int, slots: int, split_backward: bool = True, costs: Mapping[Work, float] = EQUAL_COSTS
) -> list[Row]:
    """One epoch of every stage: each acts as soon as it is free and its input is there. Transfers take no time.

    Costs are per slot and the same on every stage. Without split backward an I does the work of a W as well.
    """
    cost = dict(costs)
    if not split_backward:
        cost[Work.INPUT_GRADIENT] += cost[Work.WEIGHT_GRADIENT]
    left = [epoch_schedule(stages, stage, slots, split_backward) for stage in range(stages)]
    rows: list[Row] = [[] for _ in range(stages)]
    clock = [0.0] * stages
    sent: dict[tuple[int, Work, int], float] = {}  # by sending stage: when it left
    while any(left):
        before = sum(map(len, left))
        for stage, actions in enumerate(left):
            while actions and _is_ready(actions[0], sent):
                _act(actions.pop(0), stage, cost, clock, sent, rows[stage])
        if sum(map(len, left)) == before:
            raise RuntimeError(f"the schedule of {stages} stages and {slots} slots waits for itself")
    return rows


def makespan(rows: list[Row]) -> float:
    """From the first start to the last end."""
    spans = [span for row in rows for span in row]
    return max(s.end for s in spans) - min(s.start for s in spans) if spans else 0.0


def idle_share(rows: list[Row]) -> float:
    """Share of all ranks' time in which no work was done, 0 to 1."""
    total = makespan(rows) * len(rows)
    return 1.0 - sum(seconds for row in rows for _, seconds in worked(row)) / total if total else 0.0


def worked(row: Row) -> list[tuple[Span, float]]:
    """Each piece of work and its seconds, without those in which it waited for other ways."""
    waits = [span for span in row if span.name.startswith(WAIT)]
    return [
        (work, work.seconds - sum(w.seconds for w in waits if work.start <= w.start and w.end <= work.end))
        for work in row
        if is_work(work)
    ]


def is_work(span: Span) -> bool:
    """F, I and W of a slot, as opposed to transfers and waits."""
    return span.name[:1] in set(Work) and span.name[1:].isdigit()


def _is_ready(action: Action, sent: dict[tuple[int, Work, int], float]) -> bool:
    if action.move is not Move.RECV:
        return True
    assert action.peer_stage is not None
    return (action.peer_stage, action.work, action.position) in sent


def _act(
    action: Action,
    stage: int,
    cost: Mapping[Work, float],
    clock: list[float],
    sent: dict[tuple[int, Work, int], float],
    row: Row,
) -> None:
    start = clock[stage]
    if action.move is Move.SEND:
        sent[stage, action.work, action.position] = start
    elif action.move is Move.RECV:
        assert action.peer_stage is not None
        clock[stage] = max(start, sent[action.peer_stage, action.work, action.position])
    else:
        clock[stage] = start + cost[action.work]
        row.append(Span(str(action), start, clock[stage]))
