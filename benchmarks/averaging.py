"""`python benchmarks/averaging.py --data DIR --model gcn-8`: what does it bring to average the weights?

Each run trains once and evaluates its last weights and their averages side by side, each of them to a plateau of its
own, so that all differences are of the same training. Seeds are those from 10 to 199, which no table has. Kept in
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
from gnnpipe_trainer.learning_rate import learning_rate
from gnnpipe_trainer.optimizer import make_optimizer, take_step
from gnnpipe_trainer.report import Accuracy
from gnnpipe_trainer.staleness.carry import TAILS
from gnnpipe_trainer.validation import best_of, evaluate, is_evaluated
from gnnpipe_trainer.weights import Average, Share, ema, stage_state, tail

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import Cell
from accuracy_run import alone
from at_once import AtOnce
from paired import ratio, standard_error

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "averaging.jsonl"
NEAR = 0.95  # of the best validation of exact training's last weights is what is to be reached
LAST = "last weights"
SHARES: dict[str, Share] = {
    LAST: ema(0.0),  # bit for bit
    **{f"ema {decay:g}": ema(decay) for decay in (0.8, 0.9, 0.97)},
    **{f"tail 1/{parts}": tail(parts) for parts in (4, 8, 16, 32)},
}
BETTER = "tail"  # each time the better one of these two by validation, as mode tail has it
TWO_TAILS = tuple(f"tail 1/{parts}" for parts in TAILS.values())
RULES = (*SHARES, BETTER)

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


def train(manifest: Line) -> Iterator[tuple[str, Line]]:
    """Per rule, what averaging by it came to."""
    job = parse_job(manifest)
    training = job.spec.training
    assert training.early_stopping is not None
    run = AtOnce.of(job, ROOT)
    optimizer = make_optimizer(training, run.engine.parameters, run.engine.model.blocks)
    state = stage_state(run.engine, 0)
    averages = {rule: Average(rule, state, share) for rule, share in SHARES.items()}
    patience, every = training.early_stopping.patience, training.evaluate_every
    courses = {rule: Course(patience, every) for rule in RULES}
    for epoch in range(training.epochs):
        run.train_epoch(epoch)
        take_step(optimizer, learning_rate(training, epoch))
        for average in averages.values():
            average.follow(epoch)
        if is_evaluated(epoch, training):
            going_on = {rule for rule, course in courses.items() if not course.ended}
            if not going_on:
                break
            found: dict[str, Accuracy] = {}
            for rule in going_on.union(TWO_TAILS if BETTER in going_on else ()) - {BETTER}:
                with averages[rule].in_place():
                    found[rule] = evaluate(run.engine, run.engine.groups.control)
            if BETTER in going_on:
                found[BETTER] = best_of(found[rule] for rule in TWO_TAILS)
            for rule in going_on:
                courses[rule].offer(epoch, found[rule].val, found[rule].test)
    for rule, course in courses.items():
        yield rule, course.line()


class Kept:
    """Finished runs by cell and rule."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rows = path.read_text().splitlines() if path.exists() else []
        self.lines = {(line["cell"], line["rule"]): line for line in map(json.loads, rows)}

    def measure(self, cell: Cell, data: Path, changes: Line) -> None:
        """`changes` are fields of spec.training that are not as in the grid."""
        if all((cell.name, rule) in self.lines for rule in RULES):
            return
        manifest = cell.manifest(data)
        manifest["spec"]["training"].update(changes)
        with alone():
            found = list(train(manifest))
        with self.path.open("a") as file:
            for rule, line in found:
                told = self.lines[cell.name, rule] = {"cell": cell.name, "rule": rule, **line}
                file.write(json.dumps(told) + "\n")

    def epochs_until(self, cell: Cell, rule: str, target: float) -> int | None:
        line = self.lines[cell.name, rule]
        there = (i for i, value in enumerate(line["validation"]) if value >= target)
        index = next(there, None)
        return None if index is None else line["every"] * (index + 1)


def table(kept: Kept, graph: str, model: str, modes: Sequence[str]) -> Iterator[list[str]]:
    """Per mode and rule, seed by seed against exact training as it is, and in brackets against the averaged one."""
    for mode in ("exact", *modes):
        for rule in RULES:
            seeds = sorted(
                int(name.split("/")[3])
                for name, kept_rule in kept.lines
                if name.startswith(f"{graph}/{model}/{mode}/") and kept_rule == rule
            )
            cells = [
                (Cell(graph, model, mode, seed), Cell(graph, model, "exact", seed))
                for seed in seeds
                if (f"{graph}/{model}/exact/{seed}", rule) in kept.lines
            ]
            if cells:
                yield _row(kept, cells, rule)


def _row(kept: Kept, cells: Sequence[tuple[Cell, Cell]], rule: str) -> list[str]:
    lines = [
        (kept.lines[ours.name, rule], kept.lines[exact.name, LAST], kept.lines[exact.name, rule])
        for ours, exact in cells
    ]
    differences = [
        f"{_points([a[what] - b[what] for a, b, _ in lines])} ({_points([a[what] - c[what] for a, _, c in lines])})"
        for what in ("test", "val")
    ]
    pairs, never = [], 0
    for (ours, exact), (_, plain, _) in zip(cells, lines, strict=True):
        target = NEAR * plain["val"]
        epochs, base = kept.epochs_until(ours, rule, target), kept.epochs_until(exact, LAST, target)
        assert base is not None
        if epochs is None:
            never += 1
        else:
            pairs.append((epochs, base))
    times = "{:.2f} ± {:.2f}".format(*ratio(pairs)) if pairs else ""
    return [cells[0][0].mode, rule, str(len(cells)), *differences, times, str(never)]


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
