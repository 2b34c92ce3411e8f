"""A rank's own figures, handed to the monitor of its pod (monitor.py).

Training must never wait for whoever looks at it. So the rank only renames a small file into place, a few times a
second at most, in a folder in memory; whether anybody reads it makes no difference.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnnpipe_trainer.pipeline.engine import EpochTimes
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import PIPELINE
from gnnpipe_trainer.report import Accuracy, RankReport
from gnnpipe_trainer.whole_file import write_whole

log = logging.getLogger("gnnpipe")

ENV_METER = "GNNPIPE_METER"  # the folder; set by the pod's main process for its ranks
WRITE_EVERY_SECONDS = 0.25
RECENT_EPOCHS = 20  # pace and bubble are judged by these


@dataclass
class Figures:
    """One rank's; totals are since the process began. Maps are by kind, `idle_seconds` by reason."""

    rank: int
    stage: int
    epoch: int = 0  # epochs done
    epoch_seconds: float | None = None  # the last epoch's
    seconds_per_epoch: float | None = None  # median of late
    eta_seconds: float | None = None
    busy_seconds: float = 0.0
    idle_seconds: dict[str, float] = field(default_factory=dict)
    wait_seconds: dict[str, float] = field(default_factory=dict)  # for the wire: not part of idle_seconds
    sent_bytes: dict[str, int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)
    memory_bytes: float | None = None
    drift: float | None = None
    block_drifts: dict[str, float] = field(default_factory=dict)  # by block of the whole model
    checkpoint_seconds: float | None = None
    checkpoint_failures: int = 0
    accuracy: dict[str, float] | None = None
    # Of the whole job; known to rank 0 only, one epoch late.
    loss: float | None = None
    bytes_per_epoch: dict[str, int] | None = None
    bubble: float | None = None
    stale_share: float | None = None
    oscillation: float | None = None


class Meter:
    """Collects and hands over. Without a folder it only collects."""

    def __init__(self, topology: Topology, epochs: int, folder: Path | None, first_block: int = 0) -> None:
        self.figures = Figures(topology.rank, topology.stage)
        self._epochs, self._folder, self._first_block = epochs, folder, first_block
        self._seconds: deque[float] = deque(maxlen=RECENT_EPOCHS)
        self._idle: deque[float] = deque(maxlen=RECENT_EPOCHS)
        self._ends: deque[float] = deque(
            maxlen=RECENT_EPOCHS + 1
        )  # evaluation and checkpoints lie in between
        self._ends.append(time.monotonic())
        self._written = float("-inf")

    @staticmethod
    def here(topology: Topology, epochs: int, first_block: int) -> Meter:
        """The meter of this process; its figures go where the environment says, if it does."""
        named = os.environ.get(ENV_METER)
        return Meter(topology, epochs, Path(named) if named else None, first_block)

    def epoch(self, epoch: int, times: EpochTimes, report: RankReport, line: dict[str, Any] | None) -> None:
        """An epoch is done. `line` is what rank 0 last wrote to epochs.jsonl."""
        figures, traffic = self.figures, times.traffic
        figures.epoch = epoch + 1
        figures.epoch_seconds = report.seconds
        figures.busy_seconds += report.seconds - report.wait_seconds
        figures.memory_bytes = report.memory_bytes
        if (drift := report.staleness.drift) is not None:
            figures.drift = drift
        figures.block_drifts = {
            str(self._first_block + block): drift
            for block, drift in enumerate(report.staleness.block_drifts)
            if drift is not None
        }
        for reason, seconds in traffic.idle_seconds.items():
            _add(figures.idle_seconds, reason, seconds)
        for kind, seconds in traffic.wait_seconds.items():
            idle = sum(traffic.idle_seconds.values()) if kind == PIPELINE else 0.0
            _add(figures.wait_seconds, kind, max(0.0, seconds - idle))
        for totals, counted in (
            (figures.sent_bytes, traffic.sent),
            (figures.received_bytes, traffic.received),
        ):
            for kind, count in counted.items():
                totals[kind] = totals.get(kind, 0) + count
        self._pace(report.seconds)
        self._job(line)
        self._hand_over()

    def evaluated(self, accuracy: Accuracy, line: dict[str, Any] | None) -> None:
        self.figures.accuracy = asdict(accuracy)
        self._job(line)
        self._hand_over(now=True)

    def checkpointed(self, seconds: float, failed: int) -> None:
        """How long the last checkpoint took to write, 0 where there was none yet; how many could not be written."""
        self.figures.checkpoint_seconds = seconds or None
        self.figures.checkpoint_failures = failed

    def close(self, line: dict[str, Any] | None) -> None:
        self.figures.eta_seconds = 0.0
        self._job(line)
        self._hand_over(now=True)

    def _pace(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._ends.append(time.monotonic())
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        self.figures.seconds_per_epoch = statistics.median(self._seconds)
        self.figures.eta_seconds = each * max(0, self._epochs - self.figures.epoch)

    def _job(self, line: Mapping[str, Any] | None) -> None:
        if line is None:
            return
        self._idle.append(statistics.mean(line["idle"]))
        self.figures.loss = line["loss"]
        self.figures.bytes_per_epoch = line["bytes"]
        self.figures.bubble = statistics.median(self._idle)
        self.figures.stale_share = line.get("staleShare")
        self.figures.oscillation = line.get("oscillation")

    def _hand_over(self, now: bool = False) -> None:
        if self._folder is None or not (now or time.monotonic() - self._written >= WRITE_EVERY_SECONDS):
            return
        self._written = time.monotonic()
        path = self._folder / f"rank{self.figures.rank}.json"
        try:
            write_whole(path, json.dumps(vars(self.figures)))
        except OSError as error:
            log.warning("The metrics of this rank end here: %s", error)
            self._folder = None


def read_figures(folder: Path) -> list[Figures]:
    """Those of all ranks that handed some over, by rank."""
    found = []
    for path in folder.glob("rank*.json"):
        try:
            found.append(Figures(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s cannot be read: %s", path, error)
    return sorted(found, key=lambda figures: figures.rank)


def _add(totals: dict[str, float], key: str, seconds: float) -> None:
    totals[key] = totals.get(key, 0.0) + seconds
