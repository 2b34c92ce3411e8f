"""`python benchmarks/accuracy_settings.py --data DIR --cell cora/resgcn-32`: which settings does exact training want?

The accuracy grid trains every mode of a cell with the same settings, and those are exact training's: of all learning
rates, dropouts and weight decays below, what validates best. No pipeline and no test set is looked at. Each is trained
with one seed, the best six with four more, and of those that are within a point of the best mean, which so few seeds
cannot tell apart, the lowest learning rate wins: the grid counts epochs, and wants some to count. The seeds, from 1000
on, are in no table. Kept in results/accuracy_settings.jsonl; a test holds accuracy_grid.py to the winners.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console

from gnnpipe_trainer.bench.show import markdown_table

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import Cell

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "accuracy_settings.jsonl"
SEEDS = range(1000, 1005)
FINALISTS = 6
ALIKE = 0.01  # best validations that are so near to each other say nothing

LEARNING_RATES = (0.001, 0.003, 0.01, 0.03)
DROPOUTS = (0.2, 0.5, 0.7)
WEIGHT_DECAYS = (0.0, 5e-4)
OWN_DECAYS = {"cora": (5e-4,)}  # what everybody takes for the citation graphs


class Settings(NamedTuple):
    learning_rate: float
    dropout: float
    weight_decay: float

    def put_into(self, manifest: dict[str, Any]) -> None:
        spec = manifest["spec"]
        spec["model"]["dropout"] = self.dropout
        spec["training"] |= {"learningRate": self.learning_rate, "weightDecay": self.weight_decay}


def candidates(graph: str) -> list[Settings]:
    decays = OWN_DECAYS.get(graph, WEIGHT_DECAYS)
    return [Settings(*each) for each in product(LEARNING_RATES, DROPOUTS, decays)]


class Kept:
    """Best validation by graph, model, settings and seed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        rows = path.read_text().splitlines() if path.exists() else []
        self.found: dict[tuple[str, Settings, int], float] = {}
        for line in map(json.loads, rows):
            self.found[line["cell"], Settings(*line["settings"]), line["seed"]] = line["val"]

    def train(self, cell: str, settings: Settings, seed: int, data: Path) -> None:
        if (cell, settings, seed) in self.found:
            return
        from accuracy_run import alone, train_cell  # torch takes long to import

        manifest = Cell.of(f"{cell}/exact/{seed}").manifest(data)
        settings.put_into(manifest)
        with alone():
            run = train_cell(manifest, ROOT)
        self.found[cell, settings, seed] = run["val"]
        line = {"cell": cell, "settings": settings, "seed": seed}
        with self.path.open("a") as file:
            file.write(
                json.dumps({**line, **{key: run[key] for key in ("val", "bestEpoch", "epochs")}}) + "\n"
            )

    def mean(self, cell: str, settings: Settings, seeds: Sequence[int] = SEEDS) -> float:
        """Best validation over the seeds that have been trained; no number at all is worse than any."""
        known = [self.found[key] for seed in seeds if (key := (cell, settings, seed)) in self.found]
        return fmean(known) if known else float("-inf")

    def finalists(self, cell: str) -> list[Settings]:
        """Best first by the first seed alone; of equals what is listed first."""
        ranked = sorted(candidates(cell.split("/")[0]), key=lambda each: -self.mean(cell, each, SEEDS[:1]))
        return ranked[:FINALISTS]

    def winner(self, cell: str) -> Settings:
        means = {each: self.mean(cell, each) for each in self.finalists(cell)}
        alike = [each for each, mean in means.items() if mean >= max(means.values()) - ALIKE]
        return min(alike, key=lambda each: (each.learning_rate, -means[each]))

    @property
    def cells(self) -> list[str]:
        return sorted({cell for cell, _, _ in self.found})


def search(kept: Kept, cell: str, data: Path) -> None:
    for settings in candidates(cell.split("/")[0]):
        kept.train(cell, settings, SEEDS[0], data)
    for seed in SEEDS[1:]:
        for settings in kept.finalists(cell):
            kept.train(cell, settings, seed, data)


def table(kept: Kept) -> Iterator[list[str]]:
    for cell in kept.cells:
        winner, best = kept.winner(cell), max(kept.mean(cell, each) for each in kept.finalists(cell))
        figures = (100 * kept.mean(cell, winner), 100 * best)
        yield [cell, *(f"{value:g}" for value in winner), *(f"{value:.1f}" for value in figures)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Chooses the settings of the accuracy grid by exact training."
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the public graphs")
    parser.add_argument("--cell", action="append", default=[], metavar="GRAPH/MODEL")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    kept = Kept(given.results)
    for cell in given.cell:
        search(kept, cell, given.data.resolve())
    header = ("cell", "learning rate", "dropout", "weight decay", "its best validation", "the best of all")
    Console(highlight=False).print(markdown_table(header, list(table(kept))), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
