"""The command line of `gnnpipe bench`."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.load import load_job
from gnnpipe_trainer.bench.compare import Comparison, Say, run_comparison
from gnnpipe_trainer.bench.dgl_venv import NoDGL, dgl_python
from gnnpipe_trainer.bench.link import bits_per_second, why_no_link
from gnnpipe_trainer.bench.modes import Mode, modes_for
from gnnpipe_trainer.bench.show import draw, print_table
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.models.block import BadModel
from gnnpipe_trainer.report import WARMUP_EPOCHS, write_json
from gnnpipe_trainer.view import show_error

FEWEST_EPOCHS = 5
FILE_COLUMNS = 120  # of a table that no terminal shows


def run_command(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    given.all = arguments
    signal.signal(signal.SIGTERM, _leave)  # namespaces and processes are cleared away on the way out
    try:
        return modes(given)
    except (BadGraph, BadModel) as mistake:
        show_error(str(mistake))
        return ExitCode.INVALID


def modes(given: argparse.Namespace) -> int:
    """Every way to train the job, side by side."""
    console = Console(width=None if sys.stdout.isatty() else FILE_COLUMNS)
    job = load_job(given.job, given.overrides)
    out: Path = given.out or Path("runs") / f"bench-{job.metadata.name}"
    rates, with_dgl = what_is_possible(
        given.rate, given.dgl, lambda said: console.print(said, style="yellow")
    )
    chosen = choose(modes_for(job, given.ranks, rates, with_dgl), given.only)
    if not chosen:
        show_error(f"--only: no mode of this job has {' or '.join(given.only)} in its name")
        return ExitCode.INVALID
    comparison = Comparison(
        job,
        chosen,
        given.epochs,
        given.rounds,
        given.job.parent,
        out,
        shlex.join(["gnnpipe", "bench", *given.all]),
    )
    results = run_comparison(comparison, lambda said: console.print(said, style="dim"))
    write_json(out / "modes.json", results)
    draw(results, out / "modes.png")
    print_table(results, console)
    measured = max(1, given.epochs - WARMUP_EPOCHS) * given.rounds
    console.print(
        f"Medians of {measured} epochs after {WARMUP_EPOCHS} to warm up. In {out}: modes.json, modes.png"
    )
    if measured < FEWEST_EPOCHS:
        console.print(f"A median of fewer than {FEWEST_EPOCHS} epochs says little.", style="yellow")
    return ExitCode.FAILED if results["failures"] else ExitCode.DONE


def choose(modes: list[Mode], parts_of_names: list[str]) -> list[Mode]:
    """Those with one of the given parts in their name; all, if none is given."""
    return [m for m in modes if not parts_of_names or any(part in m.title for part in parts_of_names)]


def what_is_possible(rates: list[str], with_dgl: bool, say: Say) -> tuple[list[str], bool]:
    """The asked rates and DGL, as far as this machine can have them; `say` hears why not."""
    if rates and (reason := why_no_link()):
        say(f"Rows with a link are left out: {reason}.")
        rates = []
    if with_dgl:
        try:
            dgl_python()
        except NoDGL as reason:
            say(f"The row of DGL is left out: {reason}.")
            with_dgl = False
    return rates, with_dgl


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _rate(text: str) -> str:
    try:
        bits_per_second(text)
    except ValueError as mistake:
        raise argparse.ArgumentTypeError(str(mistake)) from None
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gnnpipe bench", description="Measures side by side on this machine."
    )
    commands = parser.add_subparsers(metavar="BENCHMARK", required=True)
    about = "plain torch-geometric, one rank, pipeline, hybrid and graph parallelism on one job"
    sub = commands.add_parser("modes", help=about, description=f"Compares {about}.")
    sub.add_argument("job", type=Path, metavar="JOB", help="the manifest, a YAML file")
    sub.add_argument(
        *("--set", "-s"),
        action="append",
        default=[],
        dest="overrides",
        metavar="PATH=VALUE",
        help="change a field first; may be repeated",
    )
    sub.add_argument(
        "--ranks", type=int, choices=(1, 2, 4), default=2, help="4 adds hybrid 2 x 2 (default: 2)"
    )
    sub.add_argument(
        "--rate",
        type=_rate,
        action="append",
        default=[],
        help="also over an emulated link, such as 1gbit (as root); may be repeated",
    )
    sub.add_argument(
        "--epochs", type=int, default=9, help="per run, the 2 that warm up included (default: 9)"
    )
    sub.add_argument("--rounds", type=int, default=1, help="how often all modes are run in turn (default: 1)")
    sub.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="only modes with this in their name; may be repeated",
    )
    sub.add_argument("--dgl", action="store_true", help="also DGL, in an environment made for it")
    sub.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for results (default: runs/bench-<name>)"
    )
    return parser
