"""`python benchmarks/conditions.py --data DIR`: does the default hold under other conditions than the accuracy grid's?

Learning-rate schedules, dropout, plain gcn without norm, fewer and more chunks, ways, and other cuts than METIS': exact
training, the default pipeline and history of the previous epoch, side by side on the same seeds, which are those from
300 on that no table has. Kept in results/conditions.jsonl, a line per run; started again it goes on where it stopped,
several runs may share the work (--only), and the table in docs/conditions.md is written from the kept lines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console

from gnnpipe_trainer.bench.show import markdown_table

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import Cell
from paired import ratio, standard_error

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "conditions.jsonl"
PAGE = ROOT / "docs" / "conditions.md"
FIRST_SEED, SEEDS = 300, 5
NEAR = 0.95  # of exact training's best validation is what is to be reached
RULES: dict[str, dict[str, Any]] = {
    "exact": {"stages": 1, "ways": 1, "chunks": 1},
    "default": {},
    "previous": {"history": {"mode": "previous", "gradients": "drop", "correction": "none"}},
}
UNCHANGED_BY_THE_CUT = ("chunks", "ways", "cut")  # exact training is the same under all of these

Line = dict[str, Any]
Fields = dict[str, Any]
Partition = Callable[[Any, Any, int, int], Any]


@dataclass(frozen=True)
class Condition:
    group: str
    name: str
    cells: tuple[str, ...]  # graph/model
    training: Fields | None = None
    model: Fields | None = None
    parallelism: Fields | None = None
    partition: Partition | None = None
    plain: bool = True  # history of the previous epoch too

    def manifest(self, cell: str, rule: str, seed: int, data: Path) -> Fields:
        made = Cell.of(f"{cell}/pipeline/{seed}").manifest(data)
        spec = made["spec"]
        spec["training"] |= self.training or {}
        spec["model"] |= self.model or {}
        spec["parallelism"] |= self.parallelism or {}
        spec["parallelism"] |= RULES[rule]
        if rule == "previous":
            spec["training"] |= {"averaging": {"mode": "none"}}
        return made

    @property
    def rules(self) -> tuple[str, ...]:
        return ("exact", "default", "previous") if self.plain else ("exact", "default")


def merged(indptr: Any, indices: Any, ways: int, chunks: int) -> Any:
    """The published cut: METIS into four times as many parts, four random ones of which make a chunk."""
    from gnnpipe_trainer.graph.partition import partition

    parts = partition(indptr, indices, ways, 4 * chunks)
    chunk_of_part = np.random.default_rng(0).permutation(4 * chunks) // 4
    return chunk_of_part[parts]


def at_random(indptr: Any, indices: Any, ways: int, chunks: int) -> Any:
    """Chunks that keep nothing together."""
    vertices = len(indptr) - 1
    return np.random.default_rng(0).permutation(vertices) * chunks // vertices


COURSES = ("generated/gcn-8", "generated/resgcn-8", "squirrel/sage-4", "squirrel/gcnii-16")
CUTS = ("generated/gcn-8", "squirrel/gcnii-32", "squirrel/resgcn-32")
PLAIN_GCN = tuple(f"{graph}/gcn-{layers}-plain" for graph in ("cora", "generated") for layers in (2, 4, 8))


def _schedule(name: str, **fields: Any) -> Condition:
    return Condition("learning-rate schedule", name, COURSES, training={"learningRateSchedule": fields})


CONDITIONS = (
    _schedule("constant"),
    _schedule("cosine", mode="cosine"),
    _schedule("cosine after 20 epochs of warm-up", mode="cosine", warmupEpochs=20),
    _schedule("halved every 50 epochs", mode="step", every=50, factor=0.5),
    *(Condition("dropout", f"{share:g}", COURSES, model={"dropout": share}) for share in (0.0, 0.5, 0.8)),
    Condition("no norm", "gcn as it is published", PLAIN_GCN),
    *(
        Condition("chunks", str(chunks), CUTS, parallelism={"chunks": chunks}, plain=chunks in (16, 32))
        for chunks in (4, 8, 16, 32, 64)
    ),
    *(Condition("ways", str(ways), CUTS, parallelism={"ways": ways}, plain=False) for ways in (1, 2, 4)),
    Condition("cut", "METIS", CUTS),
    Condition("cut", "METIS into 64, four random parts a chunk", CUTS, partition=merged),
    Condition("cut", "at random", CUTS, partition=at_random),
)


@contextmanager
def cut_by(partition: Partition | None) -> Iterator[None]:
    """Graphs are cut so inside, and what is cut is not kept."""
    if partition is None:
        yield
        return
    with (
        TemporaryDirectory() as cache,
        patch.dict(os.environ, {"GNNPIPE_CACHE": cache}),
        patch("gnnpipe_trainer.graph.chunks.partition", partition),
    ):
        yield


KEY = ("group", "condition", "cell", "rule", "seed")
Key = tuple[str, str, str, str, int]


class Kept:
    """Finished runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read()

    def read(self) -> None:
        rows = self.path.read_text().splitlines() if self.path.exists() else []
        self.lines: dict[tuple[Any, ...], Line] = {
            tuple(line[part] for part in KEY): line for line in map(json.loads, rows)
        }

    def find(self, condition: Condition, cell: str, rule: str, seed: int) -> Line | None:
        return self.lines.get(key_of(condition, cell, rule, seed))

    def train(self, condition: Condition, cell: str, rule: str, seed: int, data: Path) -> None:
        from accuracy_run import alone, train_cell  # torch takes long to import

        with cut_by(condition.partition), alone():
            run = train_cell(condition.manifest(cell, rule, seed, data), ROOT)
        fields = dict(zip(KEY, key_of(condition, cell, rule, seed), strict=True))
        kept = {
            name: run[name] for name in ("val", "test", "bestEpoch", "epochs", "staleEdges", "validation")
        }
        with self.path.open("a") as file:
            file.write(json.dumps({**fields, **kept}) + "\n")


def key_of(condition: Condition, cell: str, rule: str, seed: int) -> Key:
    """Exact training knows no cut: one run serves all of them."""
    if rule == "exact" and condition.group in UNCHANGED_BY_THE_CUT:
        return "any cut", "", cell, rule, seed
    return condition.group, condition.name, cell, rule, seed


def measure(kept: Kept, only: Sequence[str], seeds: int, data: Path) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for condition in CONDITIONS:
            for cell in condition.cells:
                wanted = f"{condition.group}/{condition.name}/{cell}"
                if only and not any(fnmatch(wanted, pattern) for pattern in only):
                    continue
                for rule in condition.rules:
                    kept.read()
                    if kept.find(condition, cell, rule, seed) is None:
                        kept.train(condition, cell, rule, seed, data)


def tables(kept: Kept) -> Iterator[str]:
    header = ("", "cell", "stale edges", "seeds", "exact", "default", "epochs", "previous", "epochs")
    for group in dict.fromkeys(condition.group for condition in CONDITIONS):
        conditions = [condition for condition in CONDITIONS if condition.group == group]
        rows = [
            row
            for cell in dict.fromkeys(cell for condition in conditions for cell in condition.cells)
            for condition in conditions
            if cell in condition.cells and (row := _row(kept, condition, cell))
        ]
        if rows:
            yield f"### {group[0].upper()}{group[1:]}\n\n{markdown_table(header, rows)}"


def _row(kept: Kept, condition: Condition, cell: str) -> list[str] | None:
    pairs = {rule: _pairs(kept, condition, cell, rule) for rule in ("default", "previous")}
    if not pairs["default"]:
        return None
    exact = [line for _, line in pairs["default"]]
    stale = f"{pairs['default'][0][0]['staleEdges']:.0%}"
    figures = [part for rule in pairs for part in (_difference(pairs[rule]), _times(pairs[rule], cell))]
    test = f"{100 * fmean(line['test'] for line in exact):.1f}"
    return [condition.name, cell, stale, str(len(exact)), test, *figures]


def _pairs(kept: Kept, condition: Condition, cell: str, rule: str) -> list[tuple[Line, Line]]:
    """Of each seed that has both: the rule's run, and exact training's."""
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        ours, exact = (kept.find(condition, cell, it, seed) for it in (rule, "exact"))
        if ours is not None and exact is not None:
            found.append((ours, exact))
    return found


def _difference(pairs: list[tuple[Line, Line]]) -> str:
    points = [100 * (ours["test"] - exact["test"]) for ours, exact in pairs]
    return f"{fmean(points):+.1f} ± {standard_error(points):.1f}" if points else ""


def _times(pairs: list[tuple[Line, Line]], cell: str) -> str:
    """Epochs to 95% of exact training's best validation over its own; how many never got there."""
    if not pairs:
        return ""
    every = Cell.of(f"{cell}/pipeline/0").evaluate_every
    there = []
    for ours, exact in pairs:
        target = NEAR * exact["val"]
        epochs, base = (_first(line["validation"], target, every) for line in (ours, exact))
        if epochs is not None and base is not None:
            there.append((epochs, base))
    never = f", {len(pairs) - len(there)} never" if len(there) < len(pairs) else ""
    return f"{ratio(there)[0]:.2f}x{never}" if there else f"never{never.replace(',', ':')}"


def _first(course: Sequence[float], target: float, every: int) -> int | None:
    index = next((i for i, value in enumerate(course) if value >= target), None)
    return None if index is None else every * (index + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Measures the default under other conditions than the grid's."
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the public graphs")
    parser.add_argument("--only", action="append", default=[], metavar="GROUP/CONDITION/GRAPH/MODEL")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--report", action="store_true", help="train nothing, write the page")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    kept = Kept(given.results)
    if not given.report:
        measure(kept, given.only, given.seeds, given.data.resolve())
        kept.read()
    from pages import put

    put(given.page, "conditions", "\n\n".join(tables(kept)))
    Console(highlight=False).print(f"Written into {given.page}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
