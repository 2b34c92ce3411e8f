"""What a calibration measures, run by ranks that are processes of their own, as in training.

`python -m gnnpipe_trainer.planning.probe RANK RANKS PORT OUT`. All ranks compute at the same time, because that is
what a pipeline does to a machine; then the first computes alone, which tells how much they hold each other up; then
two of them talk through the engine's own channels.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gnnpipe_trainer.train  # noqa: F401  what every rank has loaded
from gnnpipe_trainer.peak import peak_resident_bytes
from gnnpipe_trainer.pipeline.wire import Channel, Traffic
from gnnpipe_trainer.planning.samples import RUNS, Bench, Timings

SMALL, LARGE = 64, 250_000  # numbers in a message; a chunk's activations are about a megabyte
MESSAGES = 20
ROUNDS = 3  # of computing alone and together
ALONE_RUN = 0


def main() -> int:
    rank, ranks, port = map(int, sys.argv[1:4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    baseline = peak_resident_bytes()
    benches = [Bench(run) for run in RUNS]
    found: dict[str, Any] = {"together": [_together(bench) for bench in benches]}
    found |= _crowding(rank, benches[ALONE_RUN]) | _link(rank)
    if rank == 0:
        found["baseline"] = baseline
    dist.barrier()
    dist.destroy_process_group()
    Path(sys.argv[4]).write_text(json.dumps(found))
    return 0


def _together(bench: Bench) -> Timings:
    dist.barrier()
    return bench.measure()


def _crowding(rank: int, bench: Bench) -> dict[str, dict[str, float]]:
    """What the same work takes while all ranks compute and while only the first does, in turns.

    By the clock as well: where a machine is rented, all its cores together may get less than each of them alone.
    """
    taken: dict[str, list[tuple[float, float]]] = {"crowded": [], "alone": []}
    for _ in range(ROUNDS):
        for how, times in taken.items():
            dist.barrier()
            if rank == 0 or how == "crowded":
                start = time.perf_counter()
                busy = _total(bench.measure())
                times.append((busy, time.perf_counter() - start))
    dist.barrier()
    return {
        how: {
            "cores": statistics.median(busy for busy, _ in times),
            "clock": statistics.median(clock for _, clock in times),
        }
        for how, times in taken.items()
        if times and rank == 0
    }


def _total(timings: Timings) -> float:
    return sum(seconds for stage in timings for seconds in stage.values())


def _link(rank: int) -> dict[str, Any]:
    """Seconds one way, and of this rank's cores for each end of a message: of a small one and of a large one."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    if rank > 1:
        return {}
    inward, outward = (
        Channel(1 - rank, group, Traffic(), torch.float32, torch.device("cpu"))
        for group in (groups if rank else groups[::-1])
    )
    small, large = (_ping_pong(rank, inward, outward, numbers) for numbers in (SMALL, LARGE))
    return {"small": small, "large": large, "bytes": 4 * (LARGE - SMALL)}


def _ping_pong(rank: int, inward: Channel, outward: Channel, numbers: int) -> dict[str, float]:
    message = (torch.zeros(numbers, 1),)
    taken = []
    busy = time.process_time()
    for _ in range(MESSAGES):
        start = time.perf_counter()
        inward.post(numbers)
        if rank == 0:
            outward.send(message)
            inward.receive(numbers, (1,), torch.float32)
        else:
            inward.receive(numbers, (1,), torch.float32)
            outward.send(message)
        taken.append((time.perf_counter() - start) / 2)
    outward.flush()
    cores = (time.process_time() - busy) / (2 * MESSAGES)
    return {"oneWay": statistics.median(taken), "cores": cores}


if __name__ == "__main__":
    sys.exit(main())
