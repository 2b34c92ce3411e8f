"""Ranks with a handicap: one that stops (SIGSTOP) at a given point of its life, one that shares no disk."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_campaign import Attempt, be_rank

# Where a rank stops: the module and the name in it whose call is never made.
POINTS = {
    "importing": None,
    "joining": ("gnnpipe_trainer.worker", "_join"),
    "meeting": ("torch.distributed.distributed_c10d", "_new_process_group_helper"),  # the store is there
    "loading": ("gnnpipe_trainer.train", "chunked_graph"),
    "resuming": ("gnnpipe_trainer.train", "Start.apply"),
    "saving": ("gnnpipe_trainer.checkpoint.storage", "write_synced"),
    "halfway through saving": ("gnnpipe_trainer.checkpoint.saver", "Saver.finish"),
    "finishing": ("gnnpipe_trainer.train", "Reporter.finish"),
}


def be_rank_with_a_disk_of_its_own(rank: int, world: int, port: int, out: Path, scratch: Path) -> None:
    """As in pods without a volume that they share."""
    own = out / f"pod{rank}"
    own.mkdir(parents=True)
    be_rank(rank, world, port, own, scratch)


def be_rank_that_stops(
    victim: int, point: str, rank: int, world: int, port: int, out: Path, scratch: Path
) -> None:
    if rank == victim:
        _stop_at(point)
    be_rank(rank, world, port, out, scratch)


def _stop_at(point: str) -> None:
    place = POINTS[point]
    if place is None:
        _stop()
        return
    module, path = place
    *owners, name = path.split(".")
    owner: Any = __import__(module, fromlist=[""])
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, _stopping(getattr(owner, name)))


def _stopping(call: Callable[..., Any]) -> Callable[..., Any]:
    def stop_first(*arguments: Any, **named: Any) -> Any:
        _stop()
        return call(*arguments, **named)

    return stop_first


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def is_stopped(attempt: Attempt, rank: int) -> bool:
    status = Path(f"/proc/{attempt.processes[rank].pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"


def until(condition: Callable[[], bool], attempt: Attempt) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit, attempt.codes
        time.sleep(0.01)
