"""`python benchmarks/cut_gradients.py --data DIR`: is it history that costs accuracy, or the gradient cut at it?

Trains one cell of the accuracy grid for a fixed number of epochs, also with rules that no pipeline can follow, each
of which mends one of the two, and keeps the course of validation in results/cut_gradients.json. The table is in
docs/staleness.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from gnnpipe_trainer.bench.show import markdown_table
from gnnpipe_trainer.pipeline.leaves import Leaves
from gnnpipe_trainer.report import write_json

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import Cell
from accuracy_run import alone, train_cell
from at_once import SumAtOnce

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cut_gradients.json"


class FreshForward(SumAtOnce):
    """Reads nothing from history; the gradient is cut as if it did."""

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        everyone, message = self.shard.inward.rows_of(None), message.detach()
        self.history.push(everyone, message)
        gathered = sum(m.times(message, everyone) for m in self.freshness.forward_matrices(self.kind))
        assert isinstance(gathered, Tensor)
        return Leaves(gathered, message)


class WholeGradient(SumAtOnce):
    """Reads history, but the gradient flows as if all of it were fresh."""

    def _transposed(self, gradient: Tensor) -> Tensor:
        rows = self.shard.outward.rows_of(None)
        return self.shard.matrix(self.kind, transposed=True).times(gradient.contiguous(), rows)


class AveragedGradient(SumAtOnce):
    """As `gradients: last`, but a moving average of the epochs before, as history is one."""

    decay = 0.9

    def _transposed(self, gradient: Tensor) -> Tensor:
        before = gradient if self.last is None else self.last
        total = super()._transposed(gradient)
        self.last = before.lerp(gradient, 1 - self.decay)
        return total


RULES: dict[str, tuple[str, type[SumAtOnce]]] = {
    "exact": ("exact", SumAtOnce),
    "history, gradient dropped": ("drop", SumAtOnce),
    "everything fresh, gradient dropped": ("drop", FreshForward),
    "history, gradient whole": ("drop", WholeGradient),
    "history, last epoch's gradient": ("last", SumAtOnce),
    "history, moving average of gradients (0.9)": ("last", AveragedGradient),
    "history, gradient dropped, fresh ones doubled": ("factor-2", SumAtOnce),
}


def manifest(given: argparse.Namespace, mode: str) -> dict[str, Any]:
    made = Cell(given.graph, given.model, mode, given.seed).manifest(given.data.resolve())
    made["spec"]["training"].update(epochs=given.epochs, evaluateEvery=4)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    kept = json.loads(given.results.read_text()) if given.results.exists() else {}
    results = kept.setdefault(f"{given.graph}/{given.model}/{given.seed}", {})
    for rule, (mode, sums) in RULES.items():
        if rule not in results:
            with alone():
                results[rule] = train_cell(manifest(given, mode), ROOT, sums)["validation"]
            write_json(given.results, kept)
    rows = [[rule, f"{100 * max(course):.1f}", f"{100 * course[-1]:.1f}"] for rule, course in results.items()]
    table = markdown_table(("rule", "best validation", "at the end"), rows)
    Console(highlight=False).print(table, soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Tells what history costs from what the cut gradient costs.")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the public graphs")
    parser.add_argument("--graph", default="squirrel")
    parser.add_argument("--model", default="gcnii-32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=56)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
