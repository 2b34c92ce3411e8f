"""All modes of a job side by side: runs them in rounds and turns what they did into rows."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.bench.epochs import Figures
from gnnpipe_trainer.bench.formula import formula_bytes
from gnnpipe_trainer.bench.machine import Others, describe_machine
from gnnpipe_trainer.bench.measure import RunFailed, measure
from gnnpipe_trainer.bench.modes import ONE_RANK, SLOW_EPOCHS, Mode
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.pipeline.schedule import ideal_bubble, slot_count
from gnnpipe_trainer.pipeline.wire import PIPELINE
from gnnpipe_trainer.report import WARMUP_EPOCHS

FORMAT = 1
WALL, CPU = "seconds", "cpuSeconds"  # clocks; CPU time is less troubled by others on the machine
Say = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """What is to be measured."""

    job: GNNPipeJob
    modes: list[Mode]
    epochs: int  # per run, with those that only warm up
    rounds: int
    manifest_folder: Path
    out: Path
    command: str

    def epochs_of(self, mode: Mode) -> int:
        """A mode with one round must make a median of that."""
        return max(self.epochs, SLOW_EPOCHS) if mode.slow and self.rounds > 1 else self.epochs


def run_comparison(comparison: Comparison, say: Say) -> dict[str, Any]:
    """Every mode once per round, so that whatever else the machine does meets all of them; the results as JSON."""
    runs: dict[str, list[Figures]] = {mode.title: [] for mode in comparison.modes}
    failures: dict[str, str] = {}
    others = Others()
    for number in range(1, comparison.rounds + 1):
        for mode in comparison.modes:
            if mode.title in failures or (mode.slow and number > 1):
                continue
            say(f"Round {number} of {comparison.rounds}: {mode.title}")
            folder = comparison.out / "runs" / f"{number}-{_as_file_name(mode.title)}"
            shutil.rmtree(folder, ignore_errors=True)
            try:
                epochs = comparison.epochs_of(mode)
                runs[mode.title].append(
                    measure(mode, comparison.job, epochs, comparison.manifest_folder, folder)
                )
            except RunFailed as failure:
                failures[mode.title] = str(failure)
                say(f"{mode.title} failed: {failure}")
    rows = [row_of(mode, comparison, runs[mode.title]) for mode in comparison.modes if runs[mode.title]]
    add_ratios(rows)
    return {
        "format": FORMAT,
        "command": comparison.command,
        "machine": {**describe_machine(), "othersBusyCores": others.busy_cores()},
        "job": comparison.job.manifest(),
        "graph": describe_graph(comparison),
        "epochs": comparison.epochs,
        "warmupEpochs": WARMUP_EPOCHS,
        "rounds": comparison.rounds,
        "modes": rows,
        "failures": failures,
    }


def row_of(mode: Mode, comparison: Comparison, runs: list[Figures]) -> dict[str, Any]:
    """Medians over all rounds, warm-up epochs left out."""
    job = mode.job(comparison.job, comparison.epochs)
    plan = make_plan(job)
    row: dict[str, Any] = {
        "name": mode.name,
        "rate": mode.rate,
        "plan": plan.as_dict(),
        "seconds": {
            "median": round(statistics.median(s for run in runs for s in warm(run.seconds)), 4),
            "rounds": [[round(s, 4) for s in run.seconds] for run in runs],
        },
        "lastLoss": runs[-1].loss[-1],
        "peakMemoryBytes": [max(peaks) for peaks in zip(*(run.memory_bytes for run in runs), strict=True)],
    }
    if runs[0].cpu_seconds:
        row["cpuSeconds"] = {"rounds": [[round(s, 4) for s in run.cpu_seconds] for run in runs]}
    if runs[0].beside:
        clocks = (WALL, CPU)
        row["beside"] = {
            clock: {"rounds": [[round(s, 4) for s in run.beside[clock]] for run in runs]} for clock in clocks
        }
    if plan.ranks > 1:
        graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, comparison.manifest_folder)
        row["bytesPerEpoch"] = runs[-1].sent_bytes
        row["formulaBytes"] = formula_bytes(job, plan, graph)
        row["zerosSkipped"] = row["bytesPerEpoch"][PIPELINE] < row["formulaBytes"][PIPELINE]
        row["waiting"] = round(statistics.median(i for run in runs for i in warm(run.idle)), 4)
        row["idealBubble"] = round(
            ideal_bubble(plan.stages, slot_count(plan.stages, plan.ways, plan.chunks)), 4
        )
    return row


def add_ratios(rows: list[dict[str, Any]]) -> None:
    """Each row's time in units of one rank's, from the runs of the same round: noise of other rounds stays out."""
    base = next((row for row in rows if row["name"] == ONE_RANK), None)
    for row in rows:
        row["ratio"] = None if base is None else time_ratio(row, base)
        both = base is not None and CPU in base and CPU in row
        row["cpuRatio"] = time_ratio(row, base, CPU) if both and base is not None else None


def time_ratio(row: dict[str, Any], base: dict[str, Any], clock: str = WALL) -> float:
    """How many times the other's time this row took: median over the rounds."""
    pairs = zip(row[clock]["rounds"], base[clock]["rounds"], strict=False)
    return round(
        statistics.median(statistics.median(warm(a)) / statistics.median(warm(b)) for a, b in pairs), 4
    )


def warm(values: list[float]) -> list[float]:
    return values[WARMUP_EPOCHS:] or values


def describe_graph(comparison: Comparison) -> dict[str, Any]:
    graph = chunked_graph(comparison.job.spec.graph, 1, 1, comparison.manifest_folder)
    return {
        "vertices": graph.num_vertices,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "classes": graph.num_classes,
    }


def _as_file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower())
