"""What lies between two ranks of this machine: latency, bandwidth and the price of a message, over gloo."""

from __future__ import annotations

import multiprocessing
import resource
import socket
import statistics
import time
from multiprocessing.queues import Queue
from typing import Any

from gnnpipe_trainer.planning.hardware import Link

SMALL, LARGE = 64, 500_000  # numbers in a message
ROUNDS = 15
TIMEOUT_SECONDS = 60


def probe_link() -> tuple[Link, float, float]:
    """(link, seconds that a message costs its sender and its receiver, bytes of a rank that has only started)."""
    context = multiprocessing.get_context("spawn")
    answers: Queue[Any] = context.Queue()
    port = _free_port()
    ranks = [context.Process(target=_rank, args=(rank, port, answers), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    try:
        small, large, post, peak = answers.get(timeout=TIMEOUT_SECONDS)
    finally:
        for rank in ranks:
            rank.join(5)
            if rank.is_alive():
                rank.terminate()
    rate = (LARGE - SMALL) * 4 / max(1e-9, large - small)
    return Link(rate, small), post, peak


def _rank(rank: int, port: int, answers: Queue[Any]) -> None:
    import torch
    import torch.distributed as dist

    import gnnpipe_trainer.train  # noqa: F401  what every rank has loaded

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    small = _one_way_seconds(rank, torch.zeros(SMALL))
    large = _one_way_seconds(rank, torch.zeros(LARGE))
    post = _post_seconds(rank, torch.zeros(SMALL))
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        answers.put((small, large, post, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def _one_way_seconds(rank: int, message: Any) -> float:
    """Half of a round trip, the median."""
    import torch.distributed as dist

    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        if rank == 0:
            dist.send(message, 1)
            dist.recv(message, 1)
        else:
            dist.recv(message, 0)
            dist.send(message, 0)
        taken.append((time.perf_counter() - start) / 2)
    return statistics.median(taken)


def _post_seconds(rank: int, message: Any) -> float:
    """What it costs to hand a message over, without waiting for it."""
    import torch.distributed as dist

    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work = dist.isend(message, 1 - rank) if rank == 0 else dist.irecv(message, 1 - rank)
        taken.append(time.perf_counter() - start)
        assert work is not None
        work.wait()
    return statistics.median(taken)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
