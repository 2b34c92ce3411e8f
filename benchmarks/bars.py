"""What the engine promises, held against what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gnnpipe_trainer.bench.compare import CPU, WALL, time_ratio
from gnnpipe_trainer.bench.modes import BARE, BY_TURNS, CHUNKS, CSR, DGL, EDGE_INDEX, ONE_RANK, SKIPPED

Row = dict[str, Any]
PIPELINE, UNSPLIT, GRAPH = "pipeline, 2 stages", "pipeline, 2 stages, W not split", "graph, 2 ways"
NO_ZEROS = f"{PIPELINE}, {SKIPPED}"
HYBRID, GRAPH_4 = "hybrid, 2 stages x 2 ways", "graph, 4 ways"
LINK_BARS = {"1gbit": 3.0, "200mbit": 8.0}
WAITING_ALLOWANCE = 0.05
BUSY_SHARE = 0.1


@dataclass(frozen=True)
class Bar:
    """One promise in one case; `figure` and `wanted` are both in the unit that `what` names."""

    case: str
    what: str
    wanted: float
    figure: float
    at_least: bool  # else: at most
    as_share: bool = False
    by_cpu: float | None = None  # the same figure from CPU time, which others on the machine trouble less
    timed: bool = True  # else: counted, which a busy machine cannot change
    busy: bool = False  # others used the machine

    @property
    def met(self) -> bool | None:
        """None: a clock on a busy machine is no judge."""
        if self.timed and self.busy:
            return None
        return self.figure >= self.wanted if self.at_least else self.figure <= self.wanted


class Rows:
    """The rows of one case by name."""

    def __init__(self, results: dict[str, Any]) -> None:
        self._rows: dict[tuple[str, str | None], Row] = {
            (row["name"], row["rate"]): row for row in results["modes"]
        }

    def get(self, name: str, rate: str | None = None) -> Row | None:
        return self._rows.get((name, rate))

    def speed(self, fast: str, slow: str, rate: str | None = None, clock: str = WALL) -> float | None:
        """How many times as fast one mode is as another; None if one of them was not timed."""
        first, second = self.get(fast, rate), self.get(slow, rate)
        if first is None or second is None or clock not in first or clock not in second:
            return None
        return time_ratio(second, first, clock)


def bars_of(case: str, results: dict[str, Any]) -> list[Bar]:
    """Every bar that the measured modes allow to judge."""
    rows = Rows(results)
    bars = [*_one_rank(case, rows), *_pipeline(case, rows), *_against_graph(case, rows), *_hybrid(case, rows)]
    busy = is_busy(results["machine"])
    return [replace(bar, busy=busy) for bar in bars]


def is_busy(machine: dict[str, Any]) -> bool:
    """Others took so much of the machine that ranks had to share their cores."""
    return bool(machine["othersBusyCores"] > BUSY_SHARE * machine["cores"])


def _one_rank(case: str, rows: Rows) -> Iterator[Bar]:
    for name, wanted in ((EDGE_INDEX, 5.0), (CSR, 2.5), (DGL, 1.2)):
        if speed := rows.speed(ONE_RANK, name):
            by_cpu = rows.speed(ONE_RANK, name, clock=CPU)
            yield Bar(case, f"1 rank: times as fast as {name}", wanted, speed, True, by_cpu=by_cpu)
    for name in (f"1 rank, {CHUNKS} chunks", f"1 rank, {CHUNKS} chunks in turn"):
        if cost := rows.speed(ONE_RANK, name):
            by_cpu = rows.speed(ONE_RANK, name, clock=CPU)
            yield Bar(case, f"{name}: time against 1 chunk", 1.15, cost, False, by_cpu=by_cpu)
    yield from _overhead(case, rows)


def _overhead(case: str, rows: Rows) -> Iterator[Bar]:
    """By turns in one process where that was measured, for two processes differ by more than this bar."""
    what = "engine: time against the bare loop of its kernels"
    if (turns := rows.get(BY_TURNS)) is not None and "beside" in turns:
        overhead, by_cpu = (time_ratio(turns, turns["beside"], clock) for clock in (WALL, CPU))
        yield Bar(case, f"{what}, by turns", 1.05, overhead, False, by_cpu=by_cpu)
    elif overhead_apart := rows.speed(BARE, ONE_RANK):
        yield Bar(case, what, 1.05, overhead_apart, False, by_cpu=rows.speed(BARE, ONE_RANK, clock=CPU))


def _pipeline(case: str, rows: Rows) -> Iterator[Bar]:
    for name, stages in ((PIPELINE, "2 stages"), (NO_ZEROS, f"2 stages, {SKIPPED}")):
        if speed := rows.speed(name, ONE_RANK):
            yield Bar(case, f"{stages}: times as fast as 1 rank", 1.5, speed, at_least=True)
    unsplit, split = rows.get(UNSPLIT), rows.get(PIPELINE)
    if unsplit is not None:
        most = unsplit["idealBubble"] + WAITING_ALLOWANCE
        what = "2 stages, W not split: waiting, at most the ideal bubble plus 5 points"
        yield Bar(case, what, most, unsplit["waiting"], at_least=False, as_share=True)
    if split is not None:
        what = "2 stages, W split: waiting, below the ideal bubble"
        yield Bar(case, what, split["idealBubble"], split["waiting"], at_least=False, as_share=True)


def _against_graph(case: str, rows: Rows) -> Iterator[Bar]:
    pipeline, graph = rows.get(PIPELINE), rows.get(GRAPH)
    if pipeline is not None and graph is not None:
        wanted = _total(graph["formulaBytes"]) / _total(pipeline["formulaBytes"])
        figure = _total(graph["bytesPerEpoch"]) / _total(pipeline["bytesPerEpoch"])
        what = "2 stages against 2-way graph parallelism: times fewer bytes (wanted: by formula)"
        yield Bar(case, what, wanted, figure, at_least=True, timed=False)
    for rate, wanted in ((None, 1.0), *LINK_BARS.items()):
        where = "loopback" if rate is None else rate
        for name, stages in ((PIPELINE, "2 stages"), (NO_ZEROS, f"2 stages, {SKIPPED},")):
            if speed := rows.speed(name, GRAPH, rate):
                what = f"{stages} against 2-way graph parallelism: times as fast, {where}"
                yield Bar(case, what, wanted, speed, at_least=True)


def _hybrid(case: str, rows: Rows) -> Iterator[Bar]:
    hybrid, graph = rows.get(HYBRID), rows.get(GRAPH_4)
    if hybrid is not None and graph is not None:
        fewer = _total(graph["bytesPerEpoch"]) / _total(hybrid["bytesPerEpoch"])
        yield Bar(
            case,
            "2 x 2 hybrid against 4-way graph parallelism: times fewer bytes",
            1.0,
            fewer,
            at_least=True,
            timed=False,
        )


def _total(sent: dict[str, int]) -> int:
    return sum(sent.values())
