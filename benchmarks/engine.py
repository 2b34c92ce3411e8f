"""`python benchmarks/engine.py`: every bar of the engine, in one go.

Runs the modes of GCN and SAGE at 16 and 32 layers, keeps each case in results/engine/, judges the bars into
results/engine.json and writes the tables of docs/benchmarks.md from them. `--docs` only does the last step.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from gnnpipe_api.load import load_job
from gnnpipe_trainer.bench.command import choose, what_is_possible
from gnnpipe_trainer.bench.compare import Comparison, run_comparison
from gnnpipe_trainer.bench.machine import machine_sentence
from gnnpipe_trainer.bench.modes import BARE, BY_TURNS, Mode, hybrid_mode, modes_for, pipeline_modes
from gnnpipe_trainer.bench.show import COLUMNS, cells_of, draw, headline, markdown_table
from gnnpipe_trainer.report import write_json

sys.path.insert(0, str(Path(__file__).parent))
from bars import Bar, bars_of, is_busy

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = Path("examples/bench-gcn.yaml")
COMMAND = "python benchmarks/engine.py"
EPOCHS, ROUNDS = 6, 3  # a case then takes about 6 minutes on a quiet machine
BEGIN, END = "<!-- engine: begin, written by benchmarks/engine.py -->", "<!-- engine: end -->"


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    layers: int
    rates: tuple[str, ...] = ()
    ranks: int = 2
    only: tuple[str, ...] = ()  # parts of the names of its modes; none: all

    @property
    def overrides(self) -> list[str]:
        return [f"spec.model.kind={self.kind}", f"spec.model.layers={self.layers}"]


LINKS = ("1gbit", "200mbit")
CASES = (
    Case("gcn-16", "gcn", 16),
    Case("gcn-16-links", "gcn", 16, LINKS, only=LINKS),
    Case("sage-16", "sage", 16),
    Case("sage-16-links", "sage", 16, LINKS, only=LINKS),
    Case("gcn-32", "gcn", 32),
    Case("sage-32", "sage", 32),
    Case("hybrid-16", "gcn", 16, ranks=4),
    # A few percent are less than the noise of a few rounds: these are quick enough for many, see --rounds.
    Case("gcn-16-overhead", "gcn", 16, only=(BARE, BY_TURNS)),
    Case("sage-16-overhead", "sage", 16, only=(BARE, BY_TURNS)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    console = Console()
    (given.results / "engine").mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if given.docs or (given.only and case.name not in given.only):
            continue
        console.rule(case.name)
        results = measure_case(case, given, console)
        write_json(given.results / "engine" / f"{case.name}.json", results)
        draw(results, given.results / "engine" / f"{case.name}.png")
    cases = read_cases(given.results)
    bars = [bar for name, results in cases.items() for bar in bars_of(name, results)]
    write_json(given.results / "engine.json", {"bars": [{**asdict(bar), "met": bar.met} for bar in bars]})
    write_between_markers(given.page, page_part(cases, bars))
    missed = [bar for bar in bars if bar.met is False]
    console.print(f"{sum(bar.met is True for bar in bars)} of {len(bars)} bars met, {len(missed)} missed")
    for bar in missed:
        console.print(f"missed: {' | '.join(_bar_cells(bar)[:-1])}")
    return 0


def measure_case(case: Case, given: argparse.Namespace, console: Console) -> dict[str, Any]:
    job = load_job(ROOT / MANIFEST, [*case.overrides, *given.overrides])
    rates, with_dgl = what_is_possible(list(case.rates), not given.no_dgl, console.print)
    modes: list[Mode] = modes_for(job, case.ranks, rates, with_dgl)
    if case.ranks == 4:  # more ranks than cores: their bytes count here, their seconds do not
        modes = [hybrid_mode(), *(mode for mode in pipeline_modes(4) if mode.parallelism["ways"] == 4)]
    modes = choose(modes, list(case.only))
    modes = [mode for mode in modes if not any(part in mode.title for part in given.without)]
    with TemporaryDirectory(prefix="gnnpipe-bench-") as scratch:
        chosen = [word for part in given.without for word in ("--without", part)]
        for option, value, usual in (("--epochs", given.epochs, EPOCHS), ("--rounds", given.rounds, ROUNDS)):
            chosen += [] if value == usual else [option, str(value)]
        command = shlex.join([*shlex.split(COMMAND), "--only", case.name, *chosen])
        comparison = Comparison(
            job, modes, given.epochs, given.rounds, ROOT / MANIFEST.parent, Path(scratch), command
        )
        return run_comparison(comparison, console.print)


def read_cases(results: Path) -> dict[str, dict[str, Any]]:
    """The kept results, in the order of CASES."""
    paths = {case.name: results / "engine" / f"{case.name}.json" for case in CASES}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def page_part(cases: dict[str, dict[str, Any]], bars: list[Bar]) -> str:
    """The generated part of docs/benchmarks.md."""
    if not cases:
        return f"No figures of a quiet machine are kept yet; `{COMMAND}` (or `make bench`) makes them."
    parts = [
        "### The bars\n",
        markdown_table(
            ("case", "bar", "wanted", "measured", "by CPU time", ""),
            [_bar_cells(bar) for bar in bars],
        ),
        f"\nCommand: `{COMMAND}`",
    ]
    for name, results in cases.items():
        machine, measured = results["machine"], results["epochs"] - results["warmupEpochs"]
        parts += [
            f"\n### {name}\n",
            f"{headline(results['graph'], results['job']['spec']['model'])}. Medians of {results['rounds']} x "
            f"{measured} epochs after {results['warmupEpochs']}. {machine_sentence(machine)}; others kept "
            f"{machine['othersBusyCores']} cores busy meanwhile.{_warning(machine)}\n",
            markdown_table(COLUMNS, [cells_of(row) for row in results["modes"]]),
            f"\nCommand: `{results['command']}`. Figures: [{name}.json](../benchmarks/results/engine/{name}.json).",
            f"\n![{name}](../benchmarks/results/engine/{name}.png)",
        ]
    return "\n".join(parts)


def write_between_markers(page: Path, part: str) -> None:
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{part}\n{END}{after}", encoding="utf-8")


def _warning(machine: dict[str, Any]) -> str:
    if not is_busy(machine):
        return ""
    return " **The machine was busy: seconds and waiting say little here; bytes, memory and CPU time do.**"


def _bar_cells(bar: Bar) -> list[str]:
    sign = "at least" if bar.at_least else "at most"
    by_cpu = "" if bar.by_cpu is None else _number(bar, bar.by_cpu)
    verdict = {True: "met", False: "**missed**", None: "busy, not judged"}[bar.met]
    return [
        bar.case,
        bar.what,
        f"{sign} {_number(bar, bar.wanted)}",
        _number(bar, bar.figure),
        by_cpu,
        verdict,
    ]


def _number(bar: Bar, value: float) -> str:
    return f"{value:.1%}" if bar.as_share else f"{value:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures the engine and judges its bars.")
    names = [case.name for case in CASES]
    parser.add_argument(
        "--only", action="append", default=[], choices=names, help="only this case; may be repeated"
    )
    parser.add_argument(
        "--docs", action="store_true", help="measure nothing, write the page from the kept results"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        default=EPOCHS,
        help="per run, the 2 that warm up included (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help="how often all modes are run in turn (default: %(default)s)",
    )
    parser.add_argument("--no-dgl", action="store_true", help="without DGL")
    parser.add_argument("--without", action="append", default=[], metavar="TEXT", help="leave out such modes")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="PATH=VALUE")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
