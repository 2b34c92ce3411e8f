"""What a run leaves behind: epochs.jsonl line by line, result.json, model.pt. Written by rank 0.

Every epoch each rank hands a few numbers to rank 0. That gathering is not waited for until the next epoch is
done, so reporting never makes a stage wait for another.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import time
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.line_file import LineFile
from gnnpipe_trainer.peak import peak_resident_bytes
from gnnpipe_trainer.pipeline.engine import Engine, EpochTimes
from gnnpipe_trainer.pipeline.schedule import ideal_bubble, slot_count
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import GRADIENT, GRAPH, PIPELINE
from gnnpipe_trainer.staleness.figures import JobStaleness, RankStaleness
from gnnpipe_trainer.whole_file import write_whole

if TYPE_CHECKING:
    from gnnpipe_trainer.weights import Best

log = logging.getLogger("gnnpipe")

WARMUP_EPOCHS = 2  # left out of medians: caches and allocators are cold
KINDS = (PIPELINE, GRAPH, GRADIENT)


@dataclass(frozen=True)
class Accuracy:
    train: float
    val: float
    test: float


@dataclass(frozen=True)
class RankReport:
    """One rank's numbers of one epoch, in the order in which they are sent."""

    loss: float
    seconds: float
    wait_seconds: float
    pipeline_bytes: float
    graph_bytes: float
    gradient_bytes: float
    memory_bytes: float
    staleness: RankStaleness = field(default_factory=RankStaleness)

    @staticmethod
    def of(engine: Engine, times: EpochTimes, seconds: float, staleness: RankStaleness) -> RankReport:
        sent = times.traffic.sent
        return RankReport(
            times.loss,
            seconds,
            times.wait_seconds,
            sent[PIPELINE],
            sent[GRAPH],
            sent[GRADIENT],
            peak_memory_bytes(engine.device),
            staleness,
        )

    def numbers(self) -> list[float]:
        """All but what is told of staleness, in order."""
        return list(astuple(self)[:_NUMBERS])

    def row(self, blocks: int) -> list[float]:
        """As it is sent, with room for so many blocks; ranks may have fewer."""
        return [*self.numbers(), *self.staleness.row(blocks)]

    @staticmethod
    def of_row(row: list[float], blocks: int) -> RankReport:
        numbers: list[Any] = [*row[:_NUMBERS], RankStaleness.of_row(row[_NUMBERS:], blocks)]
        return RankReport(*numbers)


_NUMBERS = 7  # fields of a RankReport before its staleness


class Reporter:
    def __init__(
        self, job: GNNPipeJob, plan: Plan, topology: Topology, control: dist.ProcessGroup, out: Path
    ) -> None:
        self.job, self.plan, self.topology, self.control, self.out = job, plan, topology, control, out
        self._pending: tuple[int, float, dist.Work, Tensor, list[Tensor]] | None = None
        self._ranks: list[RankReport] = []
        self._line: dict[str, Any] = {}
        self._lines: list[dict[str, Any]] = []
        self._file = LineFile(out / "epochs.jsonl")
        self._started = time.time()
        self._blocks = max(plan.layers_per_stage)
        self.staleness = JobStaleness(job, plan)
        self._notes: list[str] = []
        self._began = False

    @property
    def seconds(self) -> float:
        """Since training began, interruptions left out."""
        return time.time() - self._started

    @property
    def last_line(self) -> dict[str, Any] | None:
        """As last written to epochs.jsonl; on rank 0 only."""
        return self._lines[-1] if self._lines else None

    def begin(self, seconds_before: float = 0.0, last_line: dict[str, Any] | None = None) -> None:
        """Take up the lines of the epochs that are done, up to `last_line`; later ones will be written again."""
        if not self._began:  # later on it only goes back, and the clock does not
            self._started -= seconds_before
        self._began = True
        if not self._writes:
            return
        path = self._file.path
        self._lines = [] if last_line is None else [*read_lines(path, last_line["epoch"]), last_line]
        if last_line is not None and len(self._lines) <= last_line["epoch"]:
            log.warning("%s lacks lines of epochs that are done; training goes on without them", path)
        try:
            self._file.begin(self._lines)
        except OSError as error:
            log.warning("%s could not be written (%s); training goes on", path, error.strerror)

    @property
    def _writes(self) -> bool:
        return self.topology.rank == 0

    def epoch(self, epoch: int, report: RankReport, learning_rate: float) -> None:
        """Hand in this rank's numbers, and the rate of the step, which all ranks share; they are written when somebody
        settles, while the next epoch runs."""
        self._settle()
        mine = torch.tensor(report.row(self._blocks), dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(self.topology.world)] if self._writes else []
        work = dist.gather(mine, gathered if self._writes else None, 0, group=self.control, async_op=True)
        assert work is not None
        self._pending = (epoch, learning_rate, work, mine, gathered)

    def note(self, sentence: str) -> None:
        """Something a person should read: in the log now, and in the next line that is written."""
        if self._writes:
            log.warning("%s", sentence)
            self._notes.append(sentence)

    def evaluated(self, epoch: int, accuracy: Accuracy) -> None:
        self._settle(accuracy)

    def settle(self) -> None:
        """Write the line that is still on its way, so that what is saved now never lacks it."""
        self._settle()

    def finish(self, best: Best, weights: dict[str, Tensor] | None) -> None:
        self._settle()
        if not self._writes or weights is None:
            return
        model = self.out / "model.pt"
        torch.save(weights, model.with_suffix(".new"))
        os.replace(model.with_suffix(".new"), model)
        write_json(self.out / "result.json", self._result(best))

    def _settle(self, accuracy: Accuracy | None = None) -> None:
        """Write the line of the epoch whose numbers are still on their way, if there is one."""
        if self._pending is None:
            return
        epoch, learning_rate, work, _, gathered = self._pending
        self._pending = None
        work.wait()
        if not self._writes:
            return
        self._ranks = [RankReport.of_row(row.tolist(), self._blocks) for row in gathered]
        line = self._make_line(epoch, learning_rate, accuracy)
        self._lines.append(line)
        try:
            self._file.append(line)
        except OSError as error:  # a full disk must not end the training
            log.warning(
                "The line of epoch %d could not be written (%s); training goes on", epoch, error.strerror
            )

    def _make_line(self, epoch: int, learning_rate: float, accuracy: Accuracy | None) -> dict[str, Any]:
        ranks = self._ranks
        summed = RankReport(*(sum(column) for column in zip(*(r.numbers() for r in ranks), strict=True)))
        moved = [int(summed.pipeline_bytes), int(summed.graph_bytes), int(summed.gradient_bytes)]
        line: dict[str, Any] = {
            "epoch": epoch,
            "loss": summed.loss,
            "learningRate": learning_rate,
            "seconds": round(max(r.seconds for r in ranks), 6),
            "bytes": {**dict(zip(KINDS, moved, strict=True)), "total": sum(moved)},
            "idle": [round(r.wait_seconds / r.seconds, 4) for r in ranks],
        }
        line |= self.staleness.line([rank.staleness for rank in ranks], self.note)
        if self._notes:
            line["warning"] = ". ".join(self._notes)
            self._notes = []
        if accuracy is not None:
            line["accuracy"] = asdict(accuracy)
        return line

    def _result(self, best: Best) -> dict[str, Any]:
        warm = self._lines[WARMUP_EPOCHS:] or self._lines
        slots = slot_count(self.plan.stages, self.plan.ways, self.plan.chunks)
        idle = [statistics.mean(line["idle"]) for line in warm]
        own_peak = peak_memory_bytes(torch.device("cpu"))  # where no epoch was left to train after a restart
        return {
            "job": self.job.metadata.name,
            "plan": self.plan.as_dict(),
            "historyGradients": self.job.spec.parallelism.history.gradients if slots > 1 else None,
            "historyCorrection": self.job.spec.parallelism.history.correction if slots > 1 else None,
            "weightAveraging": self.job.spec.training.averaging.mode,
            "epochs": self._lines[-1]["epoch"] + 1,
            "loss": self._lines[-1]["loss"],
            "accuracy": asdict(best.accuracy) if best.accuracy else None,
            "bestEpoch": best.epoch,
            "seconds": {
                "total": round(self.seconds, 3),
                "epochMedian": statistics.median(line["seconds"] for line in warm),
            },
            "bytesPerEpoch": self._lines[-1]["bytes"],
            "bubble": {
                "measured": round(statistics.median(idle), 4),
                "ideal": round(ideal_bubble(self.plan.stages, slots), 4),
            },
            "peakMemoryBytes": [int(r.memory_bytes) for r in self._ranks] or [own_peak],
        }


def read_lines(path: Path, before_epoch: int) -> list[dict[str, Any]]:
    """Lines of epochs.jsonl in order, up to the first that is torn, out of order or of a later epoch."""
    lines: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return lines
    for row in text.splitlines():
        try:
            line = json.loads(row)
            if line["epoch"] >= before_epoch or (lines and line["epoch"] <= lines[-1]["epoch"]):
                break
        except (ValueError, KeyError, TypeError):
            break
        lines.append(line)
    return lines


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return peak_resident_bytes()
