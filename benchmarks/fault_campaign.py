"""Kill a job again and again; it must end with the very same weights.

    python benchmarks/fault_campaign.py --kills 100 --epochs 200

Ranks are real processes that run the trainer's own worker code, forked from a process that has already imported it,
so that an attempt starts in a fraction of a second. Each attempt is hit once: a random rank, a random moment (also
while a checkpoint is being written), by SIGKILL, SIGSTOP or SIGTERM. Prints a JSON result.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 600  # a busy machine may be slow, and a rank may never end


def manifest(stages: int = 2, ways: int = 1, **training: Any) -> dict[str, Any]:
    """A small job that has everything: dropout, history, an optimizer with state, evaluations."""
    chunks = 4 * ways
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "campaign"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 300, "averageDegree": 8, "classes": 4},
            "model": {"kind": "gcnii", "layers": 6, "hidden": 16, "dropout": 0.5},
            "training": {"evaluateEvery": 5, "device": "cpu", "stallTimeoutSeconds": 60, **training},
            "parallelism": {"stages": stages, "ways": ways, "chunks": chunks},
            "checkpoint": {"everyEpochs": 2, "keep": 2},
        },
    }


def forking() -> ForkServerContext:
    """Processes made from this context have the trainer imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gnnpipe_trainer.worker"])
    return context


@dataclass
class Attempt:
    """The ranks of one start of a job, as real processes without a launcher."""

    job: dict[str, Any]
    out: Path
    scratch: Path
    processes: list[ForkServerProcess] = field(default_factory=list)

    def start(self, context: ForkServerContext) -> Attempt:
        self.out.mkdir(parents=True, exist_ok=True)
        self.scratch.mkdir(parents=True)
        (self.scratch / "manifest.json").write_text(json.dumps(self.job))
        parallelism = self.job["spec"]["parallelism"]
        world, port = parallelism["stages"] * parallelism["ways"], _free_port()
        for rank in range(world):
            process = context.Process(target=_be_rank, args=(rank, world, port, self.out, self.scratch))
            process.start()
            self.processes.append(process)
        return self

    @property
    def has_started(self) -> bool:
        return (self.scratch / "started.json").exists()

    @property
    def codes(self) -> list[int | None]:
        """Exit code of each rank, None while it runs."""
        return [process.exitcode for process in self.processes]

    def hit(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def ask_to_stop(self) -> None:
        """As the launcher does when it gets SIGTERM."""
        (self.scratch / "stop").touch()

    def wait(self, seconds: float = PATIENCE_SECONDS) -> list[int | None]:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        return self.codes

    def end(self) -> None:
        """As the launcher does once one rank has failed."""
        for process in self.processes:
            process.kill()
            process.join()

    def sentence(self, rank: int) -> str:
        path = self.scratch / f"rank{rank}.txt"
        return path.read_text() if path.exists() else ""


def campaign(
    job: dict[str, Any], folder: Path, kills: int, seed: int, signals: list[signal.Signals]
) -> dict[str, Any]:
    """Train once in peace and once under fire; say whether anything differs."""
    context, dice = forking(), random.Random(seed)
    attempt = Attempt(job, folder / "peace", folder / "scratch-peace").start(context)
    peaceful = attempt.wait()
    under_fire = folder / "fire"
    hits: Counter[str] = Counter()
    attempts = 0
    for _ in range(kills):
        attempt = Attempt(job, under_fire, folder / f"scratch-{attempts}").start(context)
        attempts += 1
        number, rank = dice.choice(signals), dice.randrange(len(attempt.processes))
        await_moment(dice, attempt, under_fire)
        attempt.hit(rank, number)
        hits[number.name] += 1
        time.sleep(dice.uniform(0, 0.2))  # the others go on for a moment, perhaps with a checkpoint
        attempt.end()
    attempt = Attempt(job, under_fire, folder / f"scratch-{attempts}").start(context)
    codes = attempt.wait()
    return {
        "kills": sum(hits.values()),
        "hits": dict(hits),
        "finished": peaceful == codes == [0] * len(codes),
        "sameWeights": _same(folder, "model.pt"),
        "sameLines": lines_of(folder / "peace") == lines_of(under_fire),
    }


def await_moment(dice: random.Random, attempt: Attempt, out: Path) -> None:
    """A random moment: while starting, while training, or while a checkpoint is being written."""
    kind = dice.choice(["starting", "training", "training", "writing"])
    checkpoints = out / "checkpoints"
    conditions: dict[str, Callable[[], bool]] = {
        "starting": lambda: False,
        "training": lambda: attempt.has_started,
        "writing": lambda: any(checkpoints.glob("*.new")),
    }
    limit = time.monotonic() + (dice.uniform(0, 1) if kind == "starting" else PATIENCE_SECONDS)
    while not conditions[kind]() and time.monotonic() < limit and None in attempt.codes:
        time.sleep(0.001)
    time.sleep(dice.uniform(0, 0.3) if kind == "training" else dice.uniform(0, 0.02))


def lines_of(out: Path) -> list[dict[str, Any]]:
    """epochs.jsonl without what a clock says."""
    lines = [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "idle")} for line in lines]


def _same(folder: Path, name: str) -> bool:
    peace, fire = folder / "peace" / name, folder / "fire" / name
    return peace.exists() and fire.exists() and peace.read_bytes() == fire.read_bytes()


def _be_rank(rank: int, world: int, port: int, out: Path, scratch: Path) -> None:
    log = os.open(scratch / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    environment = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in environment.items()})
    import torch

    from gnnpipe_trainer.worker import main

    torch.set_num_threads(1)
    paths = {"manifest": scratch / "manifest.json", "out": out, "folder": out, "scratch": scratch}
    code = main([word for name, path in paths.items() for word in (f"--{name}", str(path))])
    (scratch / f"cpu{rank}.txt").write_text(str(time.process_time()))
    os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--ways", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        job = manifest(given.stages, given.ways, epochs=given.epochs)
        signals = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]
        result = campaign(job, Path(folder), given.kills, given.seed, signals)
        result["seconds"] = round(time.perf_counter() - start, 1)
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0 if result["finished"] and result["sameWeights"] and result["sameLines"] else 1


if __name__ == "__main__":
    sys.exit(main())
