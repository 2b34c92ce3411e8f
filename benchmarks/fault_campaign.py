"""Kill a job again and again; it must end with the very same weights.

    python benchmarks/fault_campaign.py --kills 100 --epochs 200

Ranks are real processes that run the trainer's own worker code, forked from a process that has already imported it,
so that an attempt starts in a fraction of a second. Each attempt is hit once: one random rank, at a random moment (also
while a checkpoint is being written), by SIGKILL, SIGSTOP or SIGTERM; the others must notice and leave by themselves.
Every tenth time it is `gnnpipe run` or its agent that is killed, whose ranks must not stay behind. Prints JSON.
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
import subprocess
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
NOTICE_SLACK_SECONDS = 30  # beyond the stall time-out, for a busy machine
SIGNALS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM]


def manifest(stages: int = 2, ways: int = 1, vertices: int = 300, **training: Any) -> dict[str, Any]:
    """A small job that has everything: dropout, history, kept gradients, an optimizer with state, averaged weights."""
    chunks = 4 * ways
    usual = {"evaluateEvery": 5, "device": "cpu", "stallTimeoutSeconds": 60, "averaging": {"mode": "ema"}}
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "campaign"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": vertices, "averageDegree": 8, "classes": 4},
            "model": {"kind": "gcnii", "layers": 6, "hidden": 16, "dropout": 0.5},
            "training": {**usual, **training},
            "parallelism": {
                "stages": stages,
                "ways": ways,
                "chunks": chunks,
                "history": {"gradients": "last"},
            },
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
    target: Callable[[int, int, int, Path, Path], None] = field(default_factory=lambda: be_rank)
    processes: list[ForkServerProcess] = field(default_factory=list)

    def start(self, context: ForkServerContext) -> Attempt:
        self.out.mkdir(parents=True, exist_ok=True)
        self.scratch.mkdir(parents=True)
        (self.scratch / "manifest.json").write_text(json.dumps(self.job))
        parallelism = self.job["spec"]["parallelism"]
        world, port = parallelism["stages"] * parallelism["ways"], free_port()
        for rank in range(world):
            process = context.Process(target=self.target, args=(rank, world, port, self.out, self.scratch))
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


@dataclass
class Toll:
    """What was hit, and how the others took it."""

    hits: Counter[str] = field(default_factory=Counter)
    stayed: list[str] = field(default_factory=list)  # after which hits somebody did not leave by himself
    slowest_notice: float = 0.0  # seconds from a hit to the end of the last survivor


def campaign(
    job: dict[str, Any], folder: Path, kills: int, seed: int, agent_kills: int = 0
) -> dict[str, Any]:
    """Train once in peace and once under fire; say whether anything differs."""
    context, dice, toll = forking(), random.Random(seed), Toll()
    peaceful = Attempt(job, folder / "peace", folder / "scratch-peace").start(context).wait()
    under_fire = folder / "fire"
    targets = ["agent"] * agent_kills + ["rank"] * (kills - agent_kills)
    dice.shuffle(targets)
    for number, target in enumerate(targets):
        if target == "agent":
            hit_the_launcher(job, folder, under_fire, dice, toll)
        else:
            attempt = Attempt(job, under_fire, folder / f"scratch-{number}").start(context)
            hit_one_rank(attempt, dice, toll)
    codes = Attempt(job, under_fire, folder / "scratch-last").start(context).wait()
    return {
        "kills": sum(toll.hits.values()),
        "hits": dict(sorted(toll.hits.items())),
        "survivorsLeftByThemselves": not toll.stayed,
        "stayedAfter": toll.stayed,
        "slowestNoticeSeconds": round(toll.slowest_notice, 1),
        "finished": peaceful == codes == [0] * len(codes),
        "sameWeights": _same(folder, "model.pt"),
        "sameLines": lines_of(folder / "peace") == lines_of(under_fire),
    }


def hit_one_rank(attempt: Attempt, dice: random.Random, toll: Toll) -> None:
    """One rank only: the others must find out, and leave, without anybody's help."""
    number, rank = dice.choice(SIGNALS), dice.randrange(len(attempt.processes))
    moment = await_moment(dice, attempt)
    if attempt.codes[rank] is not None:
        attempt.end()
        return  # the job was done before: this one hit nobody, and does not count
    attempt.hit(rank, number)
    since = time.monotonic()
    hit = f"{number.name} while {moment}"
    toll.hits[hit] += 1
    others = [process for other, process in enumerate(attempt.processes) if other != rank]
    stall = attempt.job["spec"]["training"]["stallTimeoutSeconds"]
    for process in others:
        process.join(max(0.0, since + stall + NOTICE_SLACK_SECONDS - time.monotonic()))
    if any(process.exitcode is None for process in others):
        toll.stayed.append(f"{hit}, rank {rank}")
    toll.slowest_notice = max(toll.slowest_notice, time.monotonic() - since)
    attempt.end()  # a stopped rank 0, which takes the place to meet with it, is still there


def hit_the_launcher(job: dict[str, Any], folder: Path, out: Path, dice: random.Random, toll: Toll) -> None:
    """`gnnpipe run`, or the agent under it, is killed outright: the ranks must not stay behind."""
    (folder / "job.json").write_text(json.dumps(job))  # which is YAML too
    command = [sys.executable, "-m", "gnnpipe_trainer.cli", "run", folder / "job.json", "--out", out]
    before = len(lines_of(out))
    run = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    limit = time.monotonic() + PATIENCE_SECONDS
    while len(lines_of(out)) <= before and run.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    agents = _children(run.pid)
    ranks = [rank for agent in agents for rank in _children(agent)]
    victim = dice.choice([run.pid, *agents])
    hit = "SIGKILL of gnnpipe run" if victim == run.pid else "SIGKILL of its agent"
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
        toll.hits[hit] += 1
    since = time.monotonic()
    run.wait()
    while any(map(_lives, [*agents, *ranks])) and time.monotonic() - since < PATIENCE_SECONDS:
        time.sleep(0.01)
    if any(map(_lives, [*agents, *ranks])):
        toll.stayed.append(hit)


def await_moment(dice: random.Random, attempt: Attempt) -> str:
    """A random moment: while starting, some epochs later, or while a checkpoint is being written."""
    kind = dice.choice(["starting", "training", "training", "writing"])
    epochs = dice.randrange(3)
    checkpoints = attempt.out / "checkpoints"
    begun = len(lines_of(attempt.out))
    conditions: dict[str, Callable[[], bool]] = {
        "starting": lambda: False,
        "training": lambda: attempt.has_started and len(lines_of(attempt.out)) >= begun + epochs,
        "writing": lambda: any(checkpoints.glob("*.new")),
    }
    limit = time.monotonic() + (dice.uniform(0, 1) if kind == "starting" else PATIENCE_SECONDS)
    while not conditions[kind]() and time.monotonic() < limit and None in attempt.codes:
        time.sleep(0.001)
    time.sleep(dice.uniform(0, 0.02))
    return kind


def lines_of(out: Path) -> list[dict[str, Any]]:
    """epochs.jsonl without what a clock says; its last line may be half written."""
    if not (out / "epochs.jsonl").exists():
        return []
    whole = (out / "epochs.jsonl").read_text().rpartition("\n")[0]
    lines = [json.loads(line) for line in whole.splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "idle")} for line in lines]


def _same(folder: Path, name: str) -> bool:
    peace, fire = folder / "peace" / name, folder / "fire" / name
    return peace.exists() and fire.exists() and peace.read_bytes() == fire.read_bytes()


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _lives(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has asked about yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def be_rank(rank: int, world: int, port: int, out: Path, scratch: Path) -> None:
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


def keep(result: dict[str, Any], file: Path | None) -> None:
    """Print it, and keep it where a file is named."""
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if file is not None:
        file.write_text(text)


def free_port() -> int:
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
    parser.add_argument("--vertices", type=int, default=110_000, help="fewer: it is done before all hits")
    parser.add_argument("--stall", type=int, default=5, help="seconds after which a silent rank is given up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="a file that keeps what is printed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        training = {"epochs": given.epochs, "stallTimeoutSeconds": given.stall}
        job = manifest(given.stages, given.ways, given.vertices, **training)
        result = campaign(job, Path(folder), given.kills, given.seed, given.kills // 10)
        result |= {"stages": given.stages, "ways": given.ways, "stallSeconds": given.stall}
        result["seconds"] = round(time.perf_counter() - start, 1)
    keep(result, given.results)
    wanted = ("finished", "sameWeights", "sameLines", "survivorsLeftByThemselves")
    if result["kills"] < given.kills:
        sys.stderr.write(f"the job was done after {result['kills']} hits; a larger graph takes longer\n")
        return 1
    return 0 if all(result[what] for what in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
