"""Forecast against measured, on this machine: epoch time, bytes, memory, and whether `gnnpipe plan` picks well.

    python benchmarks/forecast.py --page docs/planning.md   # all of it; goes on where the last call stopped
    python benchmarks/forecast.py --minutes 5               # as far as it comes in five minutes
    python benchmarks/forecast.py --minutes 0               # only the table and the figures, from the results so far

It wants the machine alone. Each call calibrates the machine, trains the cases that were run least often (in fresh
processes, links emulated with network namespaces, for which it must be root), and calibrates again between the rounds
and at the end. Every case is written down when it is done, so whoever stops it loses one case at most. The results
file keeps everything that was measured; forecasts are made from it with the calibrations pooled, so that they are those
of the present code.

Cores of rented machines change their pace by half from one second to the next. So both sides are medians: of each
calibrated action, and of the epochs of a case; the medians of its rounds stand beside.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from forecast_page import sentences, summary, table
from pages import put

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_trainer.bench.link import bits_per_second
from gnnpipe_trainer.bench.machine import describe_machine
from gnnpipe_trainer.bench.measure import measure
from gnnpipe_trainer.bench.modes import Mode
from gnnpipe_trainer.planning import calibrate
from gnnpipe_trainer.planning.amounts import amounts_of
from gnnpipe_trainer.planning.fitting import hardware_of
from gnnpipe_trainer.planning.forecast import Forecast, Planner
from gnnpipe_trainer.planning.hardware import Hardware, Link
from gnnpipe_trainer.planning.main import make_planner
from gnnpipe_trainer.planning.runs import RUNS, cut_graph
from gnnpipe_trainer.report import WARMUP_EPOCHS

RESULTS = Path(__file__).parent / "results" / "forecast.json"
CAMPAIGN = 4  # raise when ranks or calibrations change so that older measurements mean something else
EPOCHS = 14
TCP_SHARE = 0.94  # of a link's bits that are a message's

GRAPHS = {
    "sparse": {"source": "synthetic", "vertices": 16_000, "averageDegree": 12},
    "dense": {"source": "synthetic", "vertices": 8_000, "averageDegree": 60},
}
MODELS = {
    "gcnii": {"kind": "gcnii", "layers": 8, "hidden": 64},
    "resgcn": {"kind": "resgcn", "layers": 8, "hidden": 96, "dropout": 0.3},
}
LOOPBACK, SLOW = "loopback", "200mbit"
ONE_HALF = [("sparse", "gcnii"), ("dense", "resgcn")]
OTHER_HALF = [("sparse", "resgcn"), ("dense", "gcnii")]


@dataclass(frozen=True)
class Case:
    graph: str
    model: str
    link: str
    cut: tuple[int, int, int]

    @property
    def ranks(self) -> int:
        return self.cut[0] * self.cut[1]

    @property
    def key(self) -> str:
        stages, ways, chunks = self.cut
        return f"{self.graph} {self.model} {self.link} {stages}x{ways} {chunks}"

    @property
    def mode(self) -> Mode:
        parallelism = dict(zip(("stages", "ways", "chunks"), self.cut, strict=True))
        return Mode(self.key, parallelism=parallelism, rate=None if self.link == LOOPBACK else self.link)

    def job(self) -> GNNPipeJob:
        manifest = {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": f"{self.model}-{self.graph}"},
            "spec": {
                "graph": GRAPHS[self.graph],
                "model": MODELS[self.model],
                "parallelism": {
                    "history": {"gradients": "last"},
                    "wireZeros": "send",
                },  # as the kept runs have it
            },
        }
        return self.mode.job(parse_job(manifest), EPOCHS)


CASES = [  # in the order in which they are run: what is asked for most comes first
    Case(graph, model, link, cut)
    for link, cut, pairs in [
        (SLOW, (1, 2, 2), ONE_HALF),
        (SLOW, (2, 1, 16), ONE_HALF),
        (LOOPBACK, (1, 2, 2), ONE_HALF + OTHER_HALF),
        (LOOPBACK, (2, 1, 8), ONE_HALF + OTHER_HALF),
        (LOOPBACK, (2, 2, 8), ONE_HALF + OTHER_HALF),
        (LOOPBACK, (4, 1, 16), ONE_HALF + OTHER_HALF),
        (LOOPBACK, (2, 1, 32), ONE_HALF),
        (LOOPBACK, (1, 1, 1), ONE_HALF + OTHER_HALF),
        (LOOPBACK, (3, 1, 12), ONE_HALF),
        (LOOPBACK, (2, 1, 32), OTHER_HALF),
        (SLOW, (1, 2, 2), OTHER_HALF),
        (SLOW, (2, 1, 16), OTHER_HALF),
    ]
    for graph, model in pairs
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="how long to measure in this call")
    parser.add_argument("--rounds", type=int, default=2, help="how often each case is run in all")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="put the table into this page: docs/planning.md"
    )
    given = parser.parse_args()
    content = _read(given.results)
    waiting = _waiting(content, given.rounds)
    if given.minutes > 0 and (waiting or not content["calibrations"]):
        _measure(content, waiting, time.monotonic() + 60 * given.minutes, given.results)
    left = len(_waiting(content, given.rounds))
    cases = forecasts(content)
    content |= {"summary": summary(cases), "cases": cases}
    _write(given.results, content)
    text = f"{table(content)}\n\n{sentences(content['summary'])}"
    if given.page:
        put(given.page, "forecast", text)
    sys.stdout.write(f"{text}\n{left} runs are left\n")
    return 0


def _read(path: Path) -> dict[str, Any]:
    if path.exists():
        content: dict[str, Any] = json.loads(path.read_text())
        if content.get("campaign") == CAMPAIGN:
            return content
    return {"campaign": CAMPAIGN, "machine": describe_machine(), "calibrations": [], "runs": {}}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _waiting(content: dict[str, Any], rounds: int) -> list[Case]:
    """The cases that were run least often first."""
    return [case for done in range(rounds) for case in CASES if _times_run(content, case) <= done]


def _times_run(content: dict[str, Any], case: Case) -> int:
    return len(content["runs"].get(case.key, []))


def _measure(content: dict[str, Any], waiting: list[Case], until: float, path: Path) -> None:
    _calibrate(content)
    began = time.monotonic()
    done = _times_run(content, waiting[0]) if waiting else 0
    for number, case in enumerate(waiting):
        if _times_run(content, case) > done:  # another round: the machine may have changed its pace
            done += 1
            _calibrate(content)
        each = (time.monotonic() - began) / max(1, number)
        if time.monotonic() + each + 15 > until:  # time for the last calibration
            break
        with tempfile.TemporaryDirectory() as folder:
            figures = measure(case.mode, case.job(), EPOCHS, Path(), Path(folder) / "run")
        content["runs"].setdefault(case.key, []).append(
            {"seconds": figures.seconds, "bytes": figures.sent_bytes, "memory": figures.memory_bytes}
        )
        _write(path, content)
    _calibrate(content)


def _calibrate(content: dict[str, Any]) -> None:
    start = time.monotonic()
    content["calibrations"].append(calibrate.measure())
    content.setdefault("calibrationSeconds", []).append(round(time.monotonic() - start, 1))


def forecasts(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Every case that was run, measured and forecast."""
    if not content["calibrations"]:
        return []
    jobs = [run.job() for run in RUNS]
    amounts = [amounts_of(job, cut_graph(job)) for job in jobs]  # as work is counted now, not when measured
    ranks = [rank for calibration in content["calibrations"] for rank in calibration]
    machine = hardware_of(ranks, content["machine"]["cores"], amounts)
    return [
        _compare(case, content["runs"][case.key], _forecast(case, machine))
        for case in CASES
        if case.key in content["runs"]
    ]


def _forecast(case: Case, machine: Hardware) -> Forecast:
    hardware = machine
    if case.link != LOOPBACK:
        far = Link(TCP_SHARE * bits_per_second(case.link) / 8, machine.near.latency_seconds)
        hardware = replace(machine, far=far, ranks_per_machine=case.ranks // 2)
    job = case.job()
    known = _planner(case.graph, case.model)
    planner = Planner(job, known.shape, known.graph, hardware)
    stages, ways, chunks = case.cut
    return planner.forecast(planner.plan(stages, ways, chunks // ways))


@cache
def _planner(graph: str, model: str) -> Planner:
    """Its graph remembers the cuts."""
    return make_planner(Case(graph, model, LOOPBACK, (1, 1, 1)).job(), Path())


def _compare(case: Case, runs: list[dict[str, Any]], forecast: Forecast) -> dict[str, Any]:
    rounds = [run["seconds"][WARMUP_EPOCHS:] for run in runs]
    memory = [forecast.memory[rank // case.cut[1]].total for rank in range(case.ranks)]
    volume = forecast.volume.as_dict()
    return {
        **asdict(case),
        "seconds": {
            "measured": statistics.median(second for seconds in rounds for second in seconds),
            "medians": [statistics.median(seconds) for seconds in rounds],
            "forecast": forecast.seconds,
        },
        "bytes": {
            "measured": runs[-1]["bytes"],
            "forecast": {kind: volume[kind] for kind in runs[-1]["bytes"]},
        },
        "memory": {
            "measured": [
                statistics.median(run["memory"][rank] for run in runs) for rank in range(case.ranks)
            ],
            "forecast": memory,
        },
        "bubble": forecast.epoch.bubble,
    }


if __name__ == "__main__":
    sys.exit(main())
