"""What checkpoints cost: epochs without any beside epochs with one each, and with one in ten.

    python benchmarks/checkpoint_cost.py --stages 2

One run takes turns: ten epochs without checkpoints, ten with one, ten with ten, and again. So each is compared with
epochs of the same process a few seconds away, and what disturbs the machine hits all alike. The time of an epoch is
that from its end to the end of the next one, with all that checkpoints do meanwhile. Prints JSON.
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

from fault_campaign import Attempt, be_rank, forking, manifest

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.saver import Saver
from gnnpipe_trainer.graph.cache import chunked_graph

NEVER = 1_000_000  # but for the last epoch, which is always saved
TURNS = {"never": NEVER, "every 10": 10, "every 1": 1}
BARS = {"every 10": 0.01, "every 1": 0.05}  # share of the time of an epoch
TURN = 10  # epochs
WARM_UP = 5  # epochs; with one checkpoint, whose memory is taken then


def job(given: argparse.Namespace) -> dict[str, Any]:
    """The engine's benchmark graph and model."""
    epochs = WARM_UP + given.rounds * len(TURNS) * TURN + 1
    made = manifest(stages=given.stages, epochs=epochs, evaluateEvery=NEVER, stallTimeoutSeconds=600)
    made["spec"]["graph"] = {
        "source": "synthetic",
        "vertices": given.vertices,
        "averageDegree": 40,
        "classes": 16,
    }
    made["spec"]["model"] |= {"kind": "gcn", "layers": given.layers, "hidden": 64}
    made["spec"]["parallelism"]["chunks"] = 16
    made["spec"]["checkpoint"] = {"everyEpochs": 1, "keep": 1}
    return made


def turn_of(epoch: int) -> str:
    """Which turn an epoch belongs to; the checkpoint after it is felt in the next."""
    return list(TURNS)[max(0, epoch - WARM_UP) // TURN % len(TURNS)]


def be_measured_rank(rank: int, world: int, port: int, out: Path, scratch: Path) -> None:
    """As any other, but that checkpoints are due by turns and the end of each epoch is noted."""
    ends: list[tuple[float, float]] = []

    def is_due(saver: Saver, epoch: int) -> bool:
        ends.append((time.perf_counter(), time.process_time()))
        (scratch / f"ends{rank}.json").write_text(json.dumps(ends))
        return epoch == 1 or (epoch >= WARM_UP and (epoch - WARM_UP) % TURNS[turn_of(epoch)] == 0)

    Saver.is_due = is_due  # type: ignore[method-assign]
    be_rank(rank, world, port, out, scratch)


def cut_graph(given: argparse.Namespace) -> None:
    """Into the cache, so that no run pays for it."""
    made = parse_job(job(given))
    plan = make_plan(made)
    chunked_graph(made.spec.graph, plan.ways, plan.chunks, Path())


def measure(folder: Path, given: argparse.Namespace) -> list[list[tuple[float, float]]]:
    """When each epoch of each rank ended, by the clock and by the CPU time of the rank."""
    attempt = Attempt(job(given), folder / "out", folder / "scratch", be_measured_rank).start(forking())
    codes = attempt.wait(given.patience)
    if any(codes) or None in codes:
        attempt.end()
        raise RuntimeError((attempt.scratch / "log.txt").read_text())
    return [json.loads((attempt.scratch / f"ends{rank}.json").read_text()) for rank in range(given.stages)]


def means(ends: list[list[tuple[float, float]]], clock: int) -> dict[str, list[float]]:
    """Mean seconds of an epoch in each turn, in order; the CPU time is that of all ranks."""
    found: dict[str, list[float]] = {name: [] for name in TURNS}
    ranks = ends if clock else ends[:1]
    for first in range(WARM_UP, len(ends[0]) - TURN, TURN):
        spent = sum(rank[first + TURN][clock] - rank[first][clock] for rank in ranks)
        found[turn_of(first)].append(spent / TURN)
    return found


def costs(found: dict[str, list[float]], name: str) -> dict[str, float]:
    """Each turn against the one without checkpoints of the same round."""
    shares = [with_it / without - 1 for without, with_it in zip(found["never"], found[name], strict=True)]
    low, _, high = statistics.quantiles(shares, n=4)
    return {"median": round(statistics.median(shares), 4), "low": round(low, 4), "high": round(high, 4)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--patience", type=float, default=1800, help="seconds that the run may take")
    given = parser.parse_args()
    cut_graph(given)
    with tempfile.TemporaryDirectory() as folder:
        ends = measure(Path(folder), given)
        size = sum(file.stat().st_size for file in Path(folder).glob("out/checkpoints/*/*/*.distcp"))
    wall, cpu = means(ends, 0), means(ends, 1)
    result: dict[str, Any] = {
        "stages": given.stages,
        "rounds": given.rounds,
        "megabytes": round(size / 1e6, 1),
        "secondsPerEpoch": round(statistics.median(wall["never"]), 4),
        "cost": {
            name: {"wall": costs(wall, name), "cpu": costs(cpu, name), "bar": bar}
            for name, bar in BARS.items()
        },
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
