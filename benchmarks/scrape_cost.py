"""What being watched costs: epochs of pods that nobody asks beside those of pods asked for /metrics at 10 Hz.

    python benchmarks/scrape_cost.py --hertz 10

Two pods run as processes on this machine, each with its monitor. One job takes turns: some epochs with a scraper at
every pod, as many without, and again. The scraper is a process of its own, as Prometheus would be, but on this very
machine: what it costs is counted in. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from checkpoint_cost import NEVER
from fault_campaign import free_port, lines_of, manifest

BAR = 0.02  # share of the time of an epoch
STAGES = 2


def job(given: argparse.Namespace) -> dict[str, Any]:
    """The engine's benchmark graph and model."""
    epochs = given.turn * (2 * given.rounds + 1) + 2
    made = manifest(stages=STAGES, epochs=epochs, evaluateEvery=NEVER, stallTimeoutSeconds=600)
    graph = {"source": "synthetic", "vertices": given.vertices, "averageDegree": 40, "classes": 16}
    made["spec"] |= {"graph": graph, "checkpoint": {"everyEpochs": NEVER}}
    made["spec"]["model"] |= {"kind": "gcn", "layers": 16, "hidden": 64}
    made["spec"]["parallelism"]["chunks"] = 16
    return made


@contextlib.contextmanager
def pods(made: dict[str, Any], folder: Path, monitors: list[int]) -> Iterator[subprocess.Popen[bytes]]:
    """Both stages; gives that of stage 0."""
    port, started = free_port(), []
    for stage, monitor in enumerate(monitors):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GNNPIPE_MANIFEST": json.dumps(made),
            "GNNPIPE_STAGE": str(stage),
            "GNNPIPE_MASTER_ADDR": "127.0.0.1",
            "GNNPIPE_MASTER_PORT": str(port),
            "GNNPIPE_OUT": str(folder),
            "GNNPIPE_TERMINATION_MESSAGE": str(folder / f"last-word{stage}"),
            "GNNPIPE_MONITOR_ADDRESS": f"127.0.0.1:{monitor}",
        }
        with (folder / f"log{stage}").open("wb") as log:
            command = [sys.executable, "-m", "gnnpipe_trainer.cli", "worker"]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        yield started[0]
    finally:
        for pod in started:
            if pod.poll() is None:
                pod.terminate()
            pod.wait()


def scrape(monitors: list[int], hertz: float, on: Event, asked: Any) -> None:
    """Ask every pod at this rate while `on` is set."""
    while on.wait():
        since = time.monotonic()
        for port in monitors:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/metrics")
            assert b"gnnpipe_epoch" in connection.getresponse().read()
            connection.close()
            asked.value += 1
        time.sleep(max(0.0, 1 / hertz - (time.monotonic() - since)))


def take_turns(pod: subprocess.Popen[bytes], out: Path, turn: int, on: Event) -> dict[bool, list[float]]:
    """Seconds of each epoch, by whether somebody scraped; epochs at which that changed are left out."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    seen = turn  # the first turn warms up
    while pod.poll() is None:
        times = _seconds(out)
        if len(times) >= seen + turn:
            seconds[on.is_set()] += times[seen + 2 : seen + turn]
            seen += turn
            on.clear() if on.is_set() else on.set()
        time.sleep(0.05)
    return seconds


def _seconds(out: Path) -> list[float]:
    if not lines_of(out):
        return []
    whole = (out / "epochs.jsonl").read_text().rpartition("\n")[0]
    return [json.loads(line)["seconds"] for line in whole.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hertz", type=float, default=10)
    parser.add_argument("--vertices", type=int, default=60_000)
    parser.add_argument("--turn", type=int, default=12, help="epochs before the scraper starts or stops")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    on, asked = multiprocessing.Event(), multiprocessing.Value("i", 0)
    monitors = [free_port() for _ in range(STAGES)]
    scraper = multiprocessing.Process(target=scrape, args=(monitors, given.hertz, on, asked), daemon=True)
    scraper.start()
    with tempfile.TemporaryDirectory() as temporary, pods(job(given), Path(temporary), monitors) as pod:
        seconds = take_turns(pod, Path(temporary), given.turn, on)
        if pod.returncode != 0:
            raise RuntimeError((Path(temporary) / "log0").read_text())
    alone, watched = (statistics.median(seconds[scraped]) for scraped in (False, True))
    result = {
        "hertz": given.hertz,
        "ranks": STAGES,
        "scrapes": asked.value,
        "epochs": {"alone": len(seconds[False]), "watched": len(seconds[True])},
        "secondsPerEpoch": {"alone": round(alone, 4), "watched": round(watched, 4)},
        "cost": round(watched / alone - 1, 4),
        "bar": BAR,
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
