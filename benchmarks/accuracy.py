"""`python benchmarks/accuracy.py --data DIR`: is training in a pipeline as accurate as exact training?

Trains what docs/accuracy.md shows, cell after cell, and keeps one line per cell in results/accuracy.jsonl; started
again it goes on where it stopped. Then it writes the tables and pictures of docs/accuracy.md from the kept lines.
`--cell NAME` trains one cell again, `--list` names them, `--report` only writes the page, `--only PATTERN` lets several
runs share the work. `--stages` trains cells with
`gnnpipe run`, a process per rank, and keeps them in results/accuracy_stages.jsonl, to be held against the others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from gnnpipe_trainer.staleness import carry

sys.path.insert(0, str(Path(__file__).parent))
from accuracy_grid import MOST_SEEDS, Cell, ablation, bars, must_run, whole

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = "GNNPIPE_DATA"  # environment: the folder of cora.npz and squirrel.npz

# What auto comes to depends on these.
AUTO = (carry.LEAST_STALE_EDGES, carry.LEAST_TO_CORRECT, carry.MOST_LAYERS, carry.TAILS)

Line = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    console = Console(highlight=False)
    try:
        cells = [Cell.of(name) for name in given.cell] or list(_chosen(given))
    except ValueError as mistake:
        console.print(f"--cell: {mistake}", soft_wrap=True)
        return 2
    kept = {name: Kept(given.results / f"{name}.jsonl") for name in ("accuracy", "accuracy_stages")}
    done = kept["accuracy_stages" if given.stages else "accuracy"]
    if given.list:
        for cell in cells:
            console.print(f"{cell.name}  {'done' if done.has(cell) else ''}")
        return 0
    if given.manifest:
        console.print(yaml.safe_dump(cells[0].manifest(given.data), sort_keys=False), soft_wrap=True)
        return 0
    if not given.report:
        _train(cells, done, given, console)
    if not given.cell and not given.no_report:
        from accuracy_page import write_page  # matplotlib takes long to import

        write_page(kept["accuracy"].lines, kept["accuracy_stages"].lines, given.page)
    return 0


class Kept:
    """The lines of finished cells, of each the last. A cell whose settings have changed since is not finished.

    Lines are only ever added: several runs may work on the grid at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read()

    def read(self) -> None:
        """Also what others have added meanwhile."""
        rows = self.path.read_text().splitlines() if self.path.exists() else []
        self._by_name: dict[str, Line] = {line["cell"]: line for line in map(json.loads, rows)}

    @property
    def lines(self) -> list[Line]:
        return [line for name, line in self._by_name.items() if self.has(Cell.of(name))]

    def has(self, cell: Cell) -> bool:
        return self._by_name.get(cell.name, {}).get("settings") == settings_of(cell)

    def keep(self, cell: Cell, result: Line) -> None:
        line = {"cell": cell.name, "settings": settings_of(cell), **result}
        self._by_name[cell.name] = line
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def settings_of(cell: Cell) -> str:
    """Changes whenever the manifest does, or what auto makes of it; where the data lies does not matter."""
    manifest = cell.manifest(Path())
    exact = manifest["spec"]["parallelism"]["stages"] == 1
    text = json.dumps(manifest if exact else [manifest, AUTO], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _train(cells: Sequence[Cell], done: Kept, given: argparse.Namespace, console: Console) -> None:
    from accuracy_run import alone, train_cell, train_in_stages  # torch takes long to import

    end = time.monotonic() + given.seconds if given.seconds else float("inf")
    train = train_in_stages if given.stages else train_cell
    for cell in cells:
        if time.monotonic() > end:
            console.print("Out of time; started again, it goes on")
            return
        done.read()
        if done.has(cell) and not given.cell:
            continue
        with nullcontext() if given.stages else alone():  # its groups hold threads until they are left
            result = train(cell.manifest(given.data.resolve()), ROOT)
        done.keep(cell, result)
        console.print(
            f"{cell.name}: test {result['test']:.1%} after {result['bestEpoch']} of {result['epochs']} epochs",
            soft_wrap=True,
        )


def _chosen(given: argparse.Namespace) -> Iterator[Cell]:
    cells = (
        whole(given.seeds)
        if given.whole
        else chain(bars(min(3, given.seeds)), must_run(given.seeds), ablation(min(3, given.seeds)))
    )
    chosen = (c for c in cells if not given.only or any(fnmatch(c.name, pattern) for pattern in given.only))
    return iter(dict.fromkeys(chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures what pipelines cost in accuracy.")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get(DATA, "data")),
        help=f"folder of cora.npz and squirrel.npz (default: ${DATA}, or data)",
    )
    parser.add_argument("--list", action="store_true", help="only name the cells")
    parser.add_argument("--cell", action="append", default=[], metavar="GRAPH/MODEL/MODE/SEED")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="such as cora/*/exact/*"
    )
    parser.add_argument("--manifest", action="store_true", help="only print the manifest of --cell")
    parser.add_argument("--report", action="store_true", help="train nothing, write the page")
    parser.add_argument("--no-report", action="store_true", help="train, do not write the page")
    parser.add_argument("--seeds", type=int, default=MOST_SEEDS, help="at most so many of each")
    parser.add_argument("--whole", action="store_true", help="every graph, model and mode that is known")
    parser.add_argument("--seconds", type=float, help="start no cell after so many seconds")
    parser.add_argument("--stages", action="store_true", help="train with real stages: gnnpipe run")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the kept lines")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "accuracy.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
