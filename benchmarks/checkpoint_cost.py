"""What checkpoints cost: epochs with one each, and with one in ten, beside epochs without any.

    python benchmarks/checkpoint_cost.py --stages 2

One run goes round by round, ten epochs each: some with a checkpoint each, one that has it alone, and some without. So
each is compared with epochs of the same process a few seconds away, and what disturbs the machine hits all alike. The
time of an epoch is that from its beginning to that of the next, with all that checkpoints do meanwhile.
Prints JSON: medians over the rounds, with their 95% confidence intervals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fault_campaign import Attempt, be_rank, forking, keep, manifest

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.saver import Saver
from gnnpipe_trainer.graph.cache import chunked_graph

NEVER = 1_000_000  # but for the last epoch, which is always saved
WARM_UP = 4  # epochs; with one checkpoint, whose memory is taken then
# What each epoch of a round has: a checkpoint begun in it, what is left of the one before, both, or nothing.
ROUND = ["into", "every", "every", "rest", "none", "none", "one", "rest of one", "none", "none"]
WITH = ("into", "every", "one")
BARS = {"every": 0.05, "every 10": 0.01}  # share of the time of an epoch


def job(given: argparse.Namespace) -> dict[str, Any]:
    epochs = WARM_UP + given.rounds * len(ROUND) + 1
    checkpoint = {"everyEpochs": 1, "keep": 1}
    return deep_gcn(given.stages, given.vertices, epochs, checkpoint, given.layers)


def deep_gcn(
    stages: int, vertices: int, epochs: int, checkpoint: dict[str, Any], layers: int = 16
) -> dict[str, Any]:
    """The engine's benchmark model and graph; nothing but its epochs takes time."""
    made = manifest(stages=stages, epochs=epochs, evaluateEvery=NEVER, stallTimeoutSeconds=600)
    graph = {"source": "synthetic", "vertices": vertices, "averageDegree": 20, "classes": 16}
    made["spec"] |= {"graph": graph, "checkpoint": checkpoint}
    made["spec"]["model"] |= {"kind": "gcn", "layers": layers, "hidden": 64}
    made["spec"]["parallelism"] = {"stages": stages, "ways": 1, "chunks": 16}
    return made


def place_in_round(epoch: int) -> str:
    return "none" if epoch < WARM_UP else ROUND[(epoch - WARM_UP) % len(ROUND)]


def be_measured_rank(rank: int, world: int, port: int, out: Path, scratch: Path) -> None:
    """As any other, but that checkpoints are due by turns and the beginning of each epoch is noted."""
    begins: list[tuple[float, float]] = []
    written: list[float] = []

    def is_due(saver: Saver, epoch: int) -> bool:
        begins.append((time.perf_counter(), time.process_time()))
        written.append(saver.counts.seconds)
        (scratch / f"begins{rank}.json").write_text(json.dumps({"begins": begins, "written": written}))
        return epoch == 1 or place_in_round(epoch) in WITH

    Saver.is_due = is_due  # type: ignore[method-assign]
    be_rank(rank, world, port, out, scratch)


def cut_graph(given: argparse.Namespace) -> None:
    """Into the cache, so that no run pays for it."""
    made = parse_job(job(given))
    plan = make_plan(made)
    chunked_graph(made.spec.graph, plan.ways, plan.chunks, Path())


def measure(folder: Path, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Of each rank: when its epochs began, by the clock and by its CPU time, and how long checkpoints took."""
    attempt = Attempt(job(given), folder / "out", folder / "scratch", be_measured_rank).start(forking())
    codes = attempt.wait(given.patience)
    if any(codes) or None in codes:
        attempt.end()
        raise RuntimeError((attempt.scratch / "log.txt").read_text())
    return [json.loads((attempt.scratch / f"begins{rank}.json").read_text()) for rank in range(given.stages)]


def rounds_of(ranks: list[list[tuple[float, float]]], clock: int) -> list[dict[str, list[float]]]:
    """Seconds of the epochs of each round, by what they had; the CPU time is that of all ranks."""
    rounds = []
    counted = ranks if clock else ranks[:1]
    for first in range(WARM_UP, len(ranks[0]) - len(ROUND), len(ROUND)):
        seconds: dict[str, list[float]] = {}
        for epoch, place in enumerate(ROUND, first):
            spent = sum(rank[epoch + 1][clock] - rank[epoch][clock] for rank in counted)
            seconds.setdefault(place, []).append(spent)
        rounds.append(seconds)
    return rounds


def shares(seconds: dict[str, list[float]]) -> dict[str, float]:
    """What checkpoints add to the epochs of one round, as a share of those without."""
    without = statistics.mean(seconds["none"])
    of_one = sum(seconds["one"] + seconds["rest of one"]) - 2 * without
    return {
        "every": statistics.mean(seconds["every"]) / without - 1,
        "every 10": of_one / (10 * without),
    }


def summary(found: list[float]) -> dict[str, float]:
    """Median, and the interval that holds the true one with 95% confidence, whatever the noise is like."""
    ordered, count = sorted(found), len(found)
    beyond = max(0, int(count / 2 - 0.98 * count**0.5))
    middle = {"median": statistics.median(found), "low": ordered[beyond], "high": ordered[-1 - beyond]}
    return {name: round(value, 4) for name, value in middle.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--patience", type=float, default=1800, help="seconds that the run may take")
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are written, on the disk to be measured"
    )
    parser.add_argument("--results", type=Path, help="a file that keeps what is printed")
    given = parser.parse_args()
    cut_graph(given)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        ranks = measure(Path(folder), given)
        size = sum(file.stat().st_size for file in Path(folder).glob("out/checkpoints/*/*/*.bin"))
    begins = [rank["begins"] for rank in ranks]
    wall, cpu = ([shares(seconds) for seconds in rounds_of(begins, clock)] for clock in (0, 1))
    without = [second for seconds in rounds_of(begins, 0) for second in seconds["none"]]
    result: dict[str, Any] = {
        "stages": given.stages,
        "rounds": given.rounds,
        "megabytes": round(size / 1e6, 1),
        "secondsPerEpoch": round(statistics.median(without), 4),
        "secondsToWrite": round(statistics.median(ranks[0]["written"][WARM_UP:]), 4),
        "cost": {
            name: {
                "wall": summary([share[name] for share in wall]),
                "cpu": summary([share[name] for share in cpu]),
                "bar": bar,
                "rounds": [round(share[name], 4) for share in wall],  # by the clock
            }
            for name, bar in BARS.items()
        },
    }
    keep(result, given.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
