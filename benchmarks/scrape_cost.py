"""What being watched costs: epochs of pods that nobody asks beside those of pods asked for /metrics at 10 Hz.

    python benchmarks/scrape_cost.py --hertz 10

Two pods run as processes on this machine, each with its monitor. One job takes turns: some epochs with a scraper at
every pod, as many without, and again; each turn is compared with the one before it. The scraper is a process of its
own, as Prometheus would be, but on this very machine, so that the clock counts in what it costs. What answering takes
of the pods' own processor time is counted beside: it says more where epochs vary by themselves. Prints JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from checkpoint_cost import NEVER, deep_gcn, summary
from fault_campaign import free_port, keep

BAR = 0.02  # share of the time of an epoch
STAGES = 2
IN_BETWEEN = 2  # epochs at the beginning of a turn that belong to neither: lines come an epoch late
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
PATIENCE_SECONDS = 60  # for pods to end once they have nothing left to do


def job(given: argparse.Namespace) -> dict[str, Any]:
    """With short epochs: scraping costs by the second, not by the epoch."""
    epochs = given.turn * (2 * given.rounds + 1) + IN_BETWEEN
    return deep_gcn(STAGES, given.vertices, epochs, {"everyEpochs": NEVER})


@contextlib.contextmanager
def pods(made: dict[str, Any], folder: Path, monitors: list[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Both stages."""
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
        yield started
    finally:
        for pod in started:
            pod.terminate()
        for pod in started:
            try:
                pod.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                pod.kill()
                pod.wait()


def scrape(monitors: list[int], hertz: float, on: Event, asked: Any) -> None:
    """Ask every pod at this rate while `on` is set, over a connection that is kept, as Prometheus does.

    Prometheus would be on another machine. Here the scraper takes the ranks' own cores, so it does as little as can be:
    http.client's Python alone cost as much again as the pods' answers.
    """
    connections: dict[int, socket.socket] = {}
    while on.wait():
        since = time.monotonic()
        for port in monitors:
            try:
                if port not in connections:
                    connections[port] = socket.create_connection(("127.0.0.1", port), timeout=5)
                answer = ask(connections[port])
            except ConnectionError:  # closed while nobody asked
                connections.pop(port, socket.socket()).close()
                continue
            assert b"gnnpipe_epoch" in answer
            asked.value += 1
        time.sleep(max(0.0, 1 / hertz - (time.monotonic() - since)))


def ask(connection: socket.socket) -> bytes:
    """The body of one answer."""
    connection.sendall(REQUEST)
    received = b""
    while True:
        part = connection.recv(1 << 17)
        if not part:
            raise ConnectionResetError
        received += part
        head, found, body = received.partition(b"\r\n\r\n")
        if found and len(body) >= int(LENGTH.search(head)[1]):  # type: ignore[index]
            return body


@dataclass(frozen=True)
class Turn:
    epoch_seconds: float  # median
    answering_share: (
        float  # of the wall time of a rank's core: what the pods' main processes took, beside the ranks
    )


def take_turns(
    started: list[subprocess.Popen[bytes]], out: Path, given: argparse.Namespace, on: Event
) -> list[Turn]:
    """Alone, watched, alone, watched, ..."""
    turns: list[Turn] = []
    seen = given.turn  # the first turn warms up
    used, since = main_seconds(started), time.perf_counter()
    while len(turns) < 2 * given.rounds:
        if started[0].poll() is not None:
            raise RuntimeError((out / "log0").read_text())
        seconds = seconds_of(out)
        if len(seconds) >= seen + given.turn:
            now_used, now = main_seconds(started), time.perf_counter()
            share = (now_used - used) / (now - since) / len(started)
            turns.append(Turn(statistics.median(seconds[seen + IN_BETWEEN : seen + given.turn]), share))
            seen, used, since = seen + given.turn, now_used, now
            on.clear() if on.is_set() else on.set()
        time.sleep(0.1)
    return turns


def main_seconds(started: list[subprocess.Popen[bytes]]) -> float:
    """Processor time of the pods' main processes, which answer scrapes; that of their ranks is not in it."""
    fields = [Path(f"/proc/{pod.pid}/stat").read_text().rpartition(")")[2].split() for pod in started]
    return sum(int(stat[11]) + int(stat[12]) for stat in fields) / os.sysconf("SC_CLK_TCK")


def seconds_of(out: Path) -> list[float]:
    """Of every epoch in epochs.jsonl; its last line may be half written."""
    if not (out / "epochs.jsonl").exists():
        return []
    whole = (out / "epochs.jsonl").read_text().rpartition("\n")[0]
    return [json.loads(line)["seconds"] for line in whole.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hertz", type=float, default=10)
    parser.add_argument("--vertices", type=int, default=20_000)
    parser.add_argument("--turn", type=int, default=12, help="epochs before the scraper starts or stops")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--results", type=Path, help="a file that keeps what is printed")
    given = parser.parse_args()
    on, asked = multiprocessing.Event(), multiprocessing.Value("i", 0)
    monitors = [free_port() for _ in range(STAGES)]
    scraper = multiprocessing.Process(target=scrape, args=(monitors, given.hertz, on, asked), daemon=True)
    scraper.start()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary, pods(job(given), Path(temporary), monitors) as started:
        turns = take_turns(started, Path(temporary), given, on)
    pairs = list(zip(turns[::2], turns[1::2], strict=True))
    result = {
        "hertz": given.hertz,
        "ranks": STAGES,
        "scrapes": asked.value,
        "rounds": given.rounds,
        "vertices": given.vertices,
        "secondsPerEpoch": {
            "alone": round(statistics.median(turn.epoch_seconds for turn in turns[::2]), 4),
            "watched": round(statistics.median(turn.epoch_seconds for turn in turns[1::2]), 4),
        },
        "cost": summary([watched.epoch_seconds / alone.epoch_seconds - 1 for alone, watched in pairs]),
        "answering": summary([watched.answering_share - alone.answering_share for alone, watched in pairs]),
        "bar": BAR,
        "seconds": round(time.perf_counter() - start, 1),
    }
    keep(result, given.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
