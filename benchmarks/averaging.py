"""`python benchmarks/averaging.py --data DIR --model gcn-8`: what does it bring to average the weights?

Each run trains once and evaluates its last weights and their moving averages side by side, each of them to a plateau
of its own, so that all differences are of the same training. Seeds are those from 10 on, which no table has. Kept in
results/averaging.jsonl; the tables are in docs/staleness.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.bench.show import markdown_table
from gnnpipe_trainer.learning_rate import learning_rate, take_step
from gnnpipe_trainer.train import evaluate, is_evaluated, make_optimizer
from gnnpipe_trainer.weights import Average, stage_state

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import Cell
from accuracy_run import alone
from at_once import AtOnce
from paired import ratio, standard_error

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "averaging.jsonl"
NEAR = 0.95  # of the best validation of exact training's last weights is what is to be reached
DECAYS = (0.0, 0.8, 0.9, 0.97)  # 0: the last weights, bit for bit

Line = dict[str, Any]


@dataclass
class Course:
    """One of the ways to evaluate a run, until it finds nothing better for `patience` epochs."""

    patience: int
    every: int  # epochs between evaluations
    validation: list[float] = field(default_factory=list)
    best: tuple[int, float, float] = (-1, -1.0, 0.0)  # epoch, validation, test
    ended: bool = False

    def offer(self, epoch: int, validation: float, test: float) -> None:
        if self.ended:
            return
        self.validation.append(round(validation, 4))
        if validation > self.best[1]:
            self.best = (epoch, validation, test)
        self.ended = epoch - self.best[0] >= self.patience

    def line(self) -> Line:
        epoch, validation, test = self.best
        return {
            "every": self.every,
            "bestEpoch": epoch + 1,
            "val": round(validation, 4),
            "test": round(test, 4),
            "validation": self.validation,
        }


def train(manifest: Line) -> Iterator[tuple[float, Line]]:
    """Per decay, what averaging with it came to."""
    job = parse_job(manifest)
    training = job.spec.training
    assert training.early_stopping is not None
    run = AtOnce.of(job, ROOT)
    optimizer = make_optimizer(training, run.engine.parameters, run.engine.model.blocks)
    averages = {decay: Average(stage_state(run.engine, 0), decay) for decay in DECAYS}
    patience, every = training.early_stopping.patience, training.evaluate_every
    courses = {decay: Course(patience, every) for decay in DECAYS}
    for epoch in range(training.epochs):
        run.train_epoch(epoch)
        take_step(optimizer, learning_rate(training, epoch))
        for average in averages.values():
            average.follow(epoch)
        if is_evaluated(epoch, training):
            going_on = [decay for decay, course in courses.items() if not course.ended]
            for decay in going_on:
                with averages[decay].in_place():
                    accuracy = evaluate(run.engine, run.engine.groups.control)
                courses[decay].offer(epoch, accuracy.val, accuracy.test)
            if not going_on:
                break
    for decay, course in courses.items():
        yield decay, course.line()


class Kept:
    """Finished runs by cell and decay."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rows = path.read_text().splitlines() if path.exists() else []
        self.lines = {(line["cell"], line["decay"]): line for line in map(json.loads, rows)}

    def measure(self, cell: Cell, data: Path, changes: Line) -> None:
        """`changes` are fields of spec.training that are not as in the grid."""
        if (cell.name, DECAYS[-1]) in self.lines:
            return
        manifest = cell.manifest(data)
        manifest["spec"]["training"].update(changes)
        with alone():
            found = list(train(manifest))
        with self.path.open("a") as file:
            for decay, line in found:
                told = self.lines[cell.name, decay] = {"cell": cell.name, "decay": decay, **line}
                file.write(json.dumps(told) + "\n")

    def epochs_until(self, cell: Cell, decay: float, target: float) -> int | None:
        line = self.lines[cell.name, decay]
        there = (i for i, value in enumerate(line["validation"]) if value >= target)
        index = next(there, None)
        return None if index is None else line["every"] * (index + 1)


def table(kept: Kept, graph: str, model: str, modes: Sequence[str]) -> Iterator[list[str]]:
    """Per mode and decay, seed by seed against exact training as it is, and in brackets against the averaged one."""
    for mode in ("exact", *modes):
        for decay in DECAYS:
            seeds = sorted(
                int(name.split("/")[3])
                for name, kept_decay in kept.lines
                if name.startswith(f"{graph}/{model}/{mode}/") and kept_decay == decay
            )
            cells = [
                (Cell(graph, model, mode, seed), Cell(graph, model, "exact", seed))
                for seed in seeds
                if (f"{graph}/{model}/exact/{seed}", decay) in kept.lines
            ]
            if cells:
                yield _row(kept, cells, decay)


def _row(kept: Kept, cells: Sequence[tuple[Cell, Cell]], decay: float) -> list[str]:
    lines = [
        (kept.lines[ours.name, decay], kept.lines[exact.name, 0.0], kept.lines[exact.name, decay])
        for ours, exact in cells
    ]
    differences = [
        f"{_points([a[what] - b[what] for a, b, _ in lines])} ({_points([a[what] - c[what] for a, _, c in lines])})"
        for what in ("test", "val")
    ]
    pairs, never = [], 0
    for (ours, exact), (_, plain, _) in zip(cells, lines, strict=True):
        target = NEAR * plain["val"]
        epochs, base = kept.epochs_until(ours, decay, target), kept.epochs_until(exact, 0.0, target)
        assert base is not None
        if epochs is None:
            never += 1
        else:
            pairs.append((epochs, base))
    times = "{:.2f} ± {:.2f}".format(*ratio(pairs)) if pairs else ""
    name = "last weights" if decay == 0 else f"decay {decay:g}"
    return [cells[0][0].mode, name, str(len(cells)), *differences, times, str(never)]


def _points(shares: Sequence[float]) -> str:
    points = [100 * share for share in shares]
    return f"{sum(points) / len(points):+.1f} ± {standard_error(points):.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.mode = given.mode or ["pipeline"]
    kept = Kept(given.results)
    changes: Line = {"averaging": {"mode": "none"}}
    if given.every:
        changes |= {"evaluateEvery": given.every}
    if given.patience:
        changes |= {"earlyStopping": {"patience": given.patience}}
    for seed in range(given.first, given.first + given.seeds):
        for mode in ("exact", *given.mode):
            kept.measure(Cell(given.graph, given.model, mode, seed), given.data.resolve(), changes)
    header = ("mode", "evaluated", "seeds", "test", "best validation", "times exact's epochs to 95%", "never")
    made = markdown_table(header, list(table(kept, given.graph, given.model, given.mode)))
    Console(highlight=False).print(made, soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Evaluates averaged weights beside the last ones.")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the public graphs")
    parser.add_argument("--graph", default="squirrel")
    parser.add_argument("--model", default="gcn-8")
    parser.add_argument("--mode", action="append", help="of the accuracy grid; default: pipeline")
    parser.add_argument("--first", type=int, default=10, help="the first seed")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--every", type=int, help="epochs between evaluations; default: the grid's")
    parser.add_argument("--patience", type=int, help="epochs that end a run; default: the grid's")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
