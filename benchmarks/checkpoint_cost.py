"""What checkpoints cost: the same job with almost none, with one every 10 epochs, and with one every epoch.

    python benchmarks/checkpoint_cost.py --vertices 60000 --layers 16

Settings take turns, so that a busy machine hits all alike, and the quickest round of each counts. Beside wall time
the CPU time of all ranks is measured: what checkpoints cost also where others disturb the clock. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fault_campaign import Attempt, forking, manifest

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import chunked_graph

NEVER = 1_000_000  # but for the last epoch, which is always saved
BARS = {10: 0.01, 1: 0.05}  # share of the time of an epoch, by epochs between two checkpoints


def job(given: argparse.Namespace, every: int) -> dict[str, Any]:
    made = manifest(epochs=given.epochs, evaluateEvery=NEVER, stallTimeoutSeconds=600)
    made["spec"]["graph"] = {
        "source": "synthetic",
        "vertices": given.vertices,
        "averageDegree": 40,
        "classes": 16,
    }
    made["spec"]["model"] |= {"kind": "gcn", "layers": given.layers, "hidden": 64}
    made["spec"]["parallelism"]["chunks"] = 16
    made["spec"]["checkpoint"] = {"everyEpochs": every, "keep": 1}
    return made


def cut_graph(given: argparse.Namespace) -> None:
    """Into the cache, so that no run pays for it."""
    made = parse_job(job(given, 1))
    plan = make_plan(made)
    chunked_graph(made.spec.graph, plan.ways, plan.chunks, Path())


def measure(folder: Path, given: argparse.Namespace, every: int) -> tuple[float, float]:
    """(wall, CPU) seconds of one run; its start is the same whatever the setting."""
    attempt = Attempt(job(given, every), folder / "out", folder / "scratch").start(forking())
    codes = attempt.wait(given.patience)
    if any(codes) or None in codes:
        attempt.end()
        raise RuntimeError((attempt.scratch / "log.txt").read_text())
    seconds = json.loads((attempt.out / "result.json").read_text())["seconds"]["total"]
    cpu = sum(float(path.read_text()) for path in attempt.scratch.glob("cpu*.txt"))
    return seconds, cpu


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=1800, help="seconds that one run may take")
    given = parser.parse_args()
    cut_graph(given)
    quickest: dict[int, tuple[float, float]] = {}
    for _ in range(given.rounds):
        for every in (NEVER, *BARS):
            with tempfile.TemporaryDirectory() as folder:
                taken = measure(Path(folder), given, every)
            before = quickest.get(every, taken)
            quickest[every] = (min(before[0], taken[0]), min(before[1], taken[1]))
    without = quickest[NEVER]
    result: dict[str, Any] = {
        "secondsPerEpoch": round(without[0] / given.epochs, 4),
        "cost": {
            f"every {every}": {
                "wall": round(quickest[every][0] / without[0] - 1, 4),
                "cpu": round(quickest[every][1] / without[1] - 1, 4),
                "bar": bar,
            }
            for every, bar in BARS.items()
        },
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
