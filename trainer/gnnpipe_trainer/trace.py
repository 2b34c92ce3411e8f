"""`gnnpipe run --profile`: what every rank did when, as a trace for Perfetto and as a picture.

Ranks record spans in memory and write them when they end. All are on one machine, whose monotonic clock they share.
"""

from __future__ import annotations

import atexit
import json
import os
import statistics
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.pipeline.schedule import Work, slot_count
from gnnpipe_trainer.timeline import WAIT, Row, Span, is_work, makespan, worked

ENV_PROFILE = (
    "GNNPIPE_PROFILE"  # the folder for the ranks' spans; set by `gnnpipe run --profile` for its ranks
)
SHORTEST_WAIT_SECONDS = 20e-6  # a stage of one way waits for other ways at every block, for nobody
KEPT_EPOCHS = 20  # the last ones: enough to choose a typical one from, little enough to stay in memory

Recorded = dict[int, dict[int, Row]]  # rank -> epoch -> spans


class SpanRecorder:
    """Keeps the spans of this rank's last epochs."""

    def __init__(self) -> None:
        self.epochs: deque[tuple[int, list[tuple[str, float, float]]]] = deque(maxlen=KEPT_EPOCHS)

    def begin(self, epoch: int) -> None:
        self.epochs.append((epoch, []))

    def span(self, name: str, start: float, end: float) -> None:
        waited_for_nothing = name.startswith(WAIT) and end - start < SHORTEST_WAIT_SECONDS
        if self.epochs and not waited_for_nothing:
            self.epochs[-1][1].append((name, start, end))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(list(self.epochs)))


def recorder_here(rank: int) -> SpanRecorder | None:
    """This process's recorder, if the run is profiled; it is written when the process ends."""
    folder = os.environ.get(ENV_PROFILE)
    if not folder:
        return None
    recorder = SpanRecorder()
    atexit.register(recorder.write, Path(folder) / f"spans{rank}.json")
    return recorder


@contextmanager
def profiled(out: Path, job: GNNPipeJob, plan: Plan) -> Iterator[None]:
    """Runs started in the block are recorded; afterwards `out` holds trace.json and schedule.png."""
    with tempfile.TemporaryDirectory(prefix="gnnpipe-profile-") as folder:
        os.environ[ENV_PROFILE] = folder
        try:
            yield
        finally:
            os.environ.pop(ENV_PROFILE)
            recorded = read_recorded(Path(folder))
            if recorded:
                (out / "trace.json").write_text(json.dumps(trace_events(recorded, plan)))
                draw_typical_epoch(out / "schedule.png", recorded, plan, job.spec.parallelism.split_backward)


def read_recorded(folder: Path) -> Recorded:
    found: Recorded = {}
    for path in folder.glob("spans*.json"):
        epochs = json.loads(path.read_text())
        rank = int(path.stem.removeprefix("spans"))
        found[rank] = {epoch: [Span(*span) for span in spans] for epoch, spans in epochs}
    return dict(sorted(found.items()))


def trace_events(recorded: Recorded, plan: Plan) -> dict[str, Any]:
    """Chrome's trace event format: a process per rank, a slice per span inside a slice per epoch, in microseconds."""
    began = min(span.start for epochs in recorded.values() for row in epochs.values() for span in row)
    events: list[dict[str, Any]] = []
    for rank, epochs in recorded.items():
        name = f"rank {rank}: stage {rank // plan.ways}" + (
            f", way {rank % plan.ways}" if plan.ways > 1 else ""
        )
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": name}})
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        )
        for epoch, row in epochs.items():
            if not row:
                continue
            whole = Span(f"epoch {epoch}", min(s.start for s in row), max(s.end for s in row))
            for span in [whole, *row]:
                events.append(
                    {
                        "ph": "X",
                        "name": span.name,
                        "cat": _category(span),
                        "pid": rank,
                        "tid": 0,
                        "ts": round(1e6 * (span.start - began), 3),
                        "dur": round(1e6 * span.seconds, 3),
                        "args": {"epoch": epoch},
                    }
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def draw_typical_epoch(path: Path, recorded: Recorded, plan: Plan, split_backward: bool) -> None:
    """The recorded epoch of median length, beside what the same work would take with nothing to wait for."""
    # Not for ranks, which only record: both take their time.
    from gnnpipe_trainer.draw import draw_run
    from gnnpipe_trainer.planning.simulate import play

    shared = set.intersection(*(set(epochs) for epochs in recorded.values()))
    rows_of = {epoch: [_drawn(epochs[epoch]) for epochs in recorded.values()] for epoch in shared}
    middle = statistics.median_low(makespan(rows) for rows in rows_of.values())
    epoch, rows = next((e, rows) for e, rows in rows_of.items() if makespan(rows) == middle)
    slots = slot_count(plan.stages, plan.ways, plan.chunks)
    stage_rows = play(plan.stages, slots, split_backward, mean_costs(rows))
    ideal = [row for row in stage_rows for _ in range(plan.ways)]
    draw_run(path, rows, ideal, f"epoch {epoch} as it ran")


def mean_costs(rows: list[Row]) -> dict[Work, float]:
    """Mean seconds of each kind of work, waits left out; 0 of a kind that was not done."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for span, taken in worked(row):
            seconds[span.name[0]].append(taken)
    return {work: statistics.mean(seconds[work]) if seconds[work] else 0.0 for work in Work}


def _drawn(row: Row) -> Row:
    """What of a row is drawn: waiting for a neighbouring stage is idleness, and that is a gap."""
    return [span for span in row if not span.name.startswith("RECV") and span.name != "wait pipeline"]


def _category(span: Span) -> str:
    if is_work(span):
        return {"F": "forward", "I": "input gradient", "W": "weight gradient", "B": "backward"}[span.name[0]]
    return "epoch" if span.name.startswith("epoch") else "transfer"
