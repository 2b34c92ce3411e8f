"""Who does what when: a schedule as it was recorded, or as planning/simulate.py plays it through."""

from __future__ import annotations

from dataclasses import dataclass

from gnnpipe_trainer.pipeline.schedule import Work

WAIT = "wait "  # begins the names of spans in which a rank waited for the wire


@dataclass(frozen=True)
class Span:
    """Something that a rank did from `start` to `end`, in seconds (or whatever unit the costs are in)."""

    name: str  # as the schedule prints it: F3, I3, W3, B3, RECV(F3), SEND(F3); or what else took time
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


Row = list[Span]  # one rank's, by start


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
    """F, I, W and B of a slot, as opposed to transfers and waits."""
    return span.name[:1] in set(Work) and span.name[1:].isdigit()
