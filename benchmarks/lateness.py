"""`python benchmarks/lateness.py --data DIR --model gcn-4`: is a pipeline late, or is that chance?

Exact training to its plateau says which validation accuracy is to be reached; then other rules train from the same
weights until they are there: exact training again with dropout on other vertices, which tells how far chance goes,
the pipeline, rules that no pipeline can follow, and histories that start younger. Seeds are those from 100 on, which
no table has. Kept in results/lateness.jsonl; the tables are in docs/staleness.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.bench.show import markdown_table
from gnnpipe_trainer.learning_rate import learning_rate
from gnnpipe_trainer.optimizer import make_optimizer, take_step
from gnnpipe_trainer.pipeline.leaves import Leaves
from gnnpipe_trainer.validation import evaluate, is_evaluated

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import Cell
from accuracy_run import alone, train_cell
from at_once import AtOnce, SumAtOnce
from cut_gradients import FreshForward, WholeGradient
from paired import ratio

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "lateness.jsonl"
NEAR = 0.95  # of exact training's best validation is what is to be reached
DECAY = 0.9
PATIENCE, GRACE = 4, 30  # a run is given up after 4 times exact training's epochs and 30 more

Line = dict[str, Any]


class Warming(SumAtOnce):
    """A moving average whose decay grows with the epochs up to the usual one."""

    epochs = 0

    def decay(self, epoch: int) -> float:
        raise NotImplementedError

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        before = self.history.live.clone()
        leaves = super().read(slot, message)
        torch.lerp(before, message.detach(), 1.0 - self.decay(self.epochs), out=self.history.coming)
        self.epochs += 1
        return leaves


class PlainMean(Warming):
    """The mean of the epochs so far; what history started from is forgotten after the first."""

    def decay(self, epoch: int) -> float:
        return min(DECAY, epoch / (epoch + 1))


class Rising(Warming):
    """Of the first epochs later ones weigh more, each by its number."""

    def decay(self, epoch: int) -> float:
        return min(DECAY, epoch / (epoch + 2))


class Unbiased(Warming):
    """The usual average, without its start's share, as Adam corrects its own."""

    def decay(self, epoch: int) -> float:
        return DECAY * (1 - DECAY**epoch) / (1 - DECAY ** (epoch + 1))


@dataclass(frozen=True)
class Rule:
    mode: str  # of the accuracy grid
    sums: type[SumAtOnce] = SumAtOnce
    draw: int = 0  # other random numbers for dropout


RULES = {
    "exact again": Rule("exact-again"),
    "exact again, second draw": Rule("exact-again", draw=700_000),
    "exact again, third draw": Rule("exact-again", draw=1_300_000),
    "pipeline": Rule("pipeline"),
    "everything fresh, gradient dropped": Rule("drop", FreshForward),
    "history, gradient whole": Rule("drop", WholeGradient),
    "history of the epoch before": Rule("previous"),
    "decay 0.5": Rule("ema-0.5"),
    "plain mean of the epochs so far": Rule("pipeline", PlainMean),
    "mean in which later epochs weigh more": Rule("pipeline", Rising),
    "average without its start": Rule("pipeline", Unbiased),
    "history starts from zeros": Rule("zeros"),
    "mean corrected": Rule("correction"),
    "last epoch's gradients": Rule("last"),
    "averaged gradients": Rule("average"),
    "chunks not shuffled": Rule("no-shuffle"),
}


def epochs_until(manifest: Line, rule: Rule, target: float, most: int) -> int | None:
    """None if validation is not there after `most` epochs."""
    job = parse_job(manifest)
    training = job.spec.training
    run = AtOnce.of(job, ROOT, rule.sums)
    run.engine.stage.seed += rule.draw
    optimizer = make_optimizer(training, run.engine.parameters, run.engine.model.blocks)
    for epoch in range(min(most, training.epochs)):
        run.train_epoch(epoch)
        take_step(optimizer, learning_rate(training, epoch))
        if is_evaluated(epoch, training):
            accuracy = evaluate(run.engine, run.engine.groups.control)
            if round(accuracy.val, 4) >= target:
                return epoch + 1
    return None


class Kept:
    """Finished runs by cell, seed and rule."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rows = path.read_text().splitlines() if path.exists() else []
        self.lines: dict[tuple[str, str], Line] = {
            (line["cell"], line["rule"]): line for line in map(json.loads, rows)
        }

    def keep(self, cell: str, rule: str, **found: Any) -> Line:
        line = self.lines[cell, rule] = {"cell": cell, "rule": rule, **found}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line


def measure(kept: Kept, graph: str, model: str, seed: int, rules: Sequence[str], data: Path) -> None:
    def manifest(mode: str) -> Line:
        return Cell(graph, model, mode, seed).manifest(data)

    name = f"{graph}/{model}/{seed}"
    exact = kept.lines.get((name, "exact"))
    if exact is None:
        with alone():
            run = train_cell(manifest("exact"), ROOT)
        every = Cell(graph, model, "exact", seed).evaluate_every
        index = next(i for i, value in enumerate(run["validation"]) if value >= NEAR * run["val"])
        exact = kept.keep(name, "exact", val=run["val"], epochs=every * (index + 1))
    for rule in rules:
        if (name, rule) not in kept.lines:
            most = PATIENCE * exact["epochs"] + GRACE
            with alone():
                epochs = epochs_until(manifest(RULES[rule].mode), RULES[rule], NEAR * exact["val"], most)
            kept.keep(name, rule, epochs=epochs)


def table(kept: Kept, graph: str, model: str) -> Iterator[list[str]]:
    """Per rule: seeds, how many never got there, epochs over exact training's, and over those of exact again."""
    found: dict[str, dict[str, int | None]] = {}
    for (cell, rule), line in kept.lines.items():
        if cell.startswith(f"{graph}/{model}/"):
            found.setdefault(rule, {})[cell] = line["epochs"]
    for rule, runs in found.items():
        row = [rule, str(len(runs)), str(sum(epochs is None for epochs in runs.values()))]
        for base in ("exact", "exact again"):
            there = [(a, b) for cell, a in runs.items() if a and (b := found.get(base, {}).get(cell))]
            row.append("{:.3f} ± {:.3f}".format(*ratio(there)) if rule != base and len(there) > 1 else "")
        yield row


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    kept = Kept(given.results)
    for seed in range(given.first, given.first + given.seeds):
        measure(kept, given.graph, given.model, seed, given.rule or list(RULES), given.data.resolve())
    header = ("rule", "seeds", "never", "times exact's epochs", "times those of exact again")
    made = markdown_table(header, list(table(kept, given.graph, given.model)))
    Console(highlight=False).print(made, soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Tells lateness from chance.")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the public graphs")
    parser.add_argument("--graph", default="cora")
    parser.add_argument("--model", default="gcn-4")
    parser.add_argument("--first", type=int, default=100, help="the first seed")
    parser.add_argument("--seeds", type=int, default=60, help="how many")
    parser.add_argument("--rule", action="append", choices=list(RULES), help="only this; may be given again")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
