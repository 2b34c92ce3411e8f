"""Ranks as real processes that stay alive between tests: starting torch costs seconds, a process group does not."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from harness.processes import free_ports

# Imported once, by the process of which all ranks are forks. A process has one of these, so that tests which start
# ranks by fault_campaign.forking() share it.
PRELOADED = ["gnnpipe_trainer.worker"]
START_SECONDS = 240
TIMEOUT_SECONDS = 60


class RankPool:
    """`run(task, world, ...)` calls task(...) on `world` ranks of a gloo process group and returns their results."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            self._pipes.append(here)
            self._processes.append(process)
        for pipe in self._pipes:  # importing torch takes long on a busy machine, and is no part of a test
            assert pipe.poll(START_SECONDS), "a rank did not start"
            pipe.recv()

    def run(self, task: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
        port = free_port()
        pipes = self._pipes[:world]
        for rank, pipe in enumerate(pipes):
            pipe.send((task, rank, world, port, arguments))
        answers = [pipe.recv() if pipe.poll(TIMEOUT_SECONDS * 2) else (False, "no answer") for pipe in pipes]
        broken = [f"rank {rank}:\n{answer}" for rank, (fine, answer) in enumerate(answers) if not fine]
        if broken:
            raise AssertionError("\n".join(broken))
        return [answer for _, answer in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join(10)


def _serve(pipe: Connection) -> None:
    import rank_tasks  # noqa: F401
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        task, rank, world, port, arguments = order
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"tcp://127.0.0.1:{port}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=TIMEOUT_SECONDS),
            )
            pipe.send((True, task(*arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


def free_port() -> int:
    """Nobody else is given it while this process lives."""
    return free_ports(1)[0]
