"""The engine and the bare loop by turns, epoch by epoch, in one process.

Two processes differ by more than the few percent that are looked for here: where their memory lies, and what the
machine does meanwhile. Turns in one process share both.
"""

from __future__ import annotations

import sys
from typing import Any

from gnnpipe_trainer.bench import bare, one_rank
from gnnpipe_trainer.bench.epochs import Figures, Step, run_task, time_epochs

SETTLING = (
    8  # turns before the first that is timed: until then the two, who share a heap, find no pieces that fit
)


def measure(task: dict[str, Any]) -> Figures:
    """The engine's figures, with the bare loop's beside them."""
    with one_rank.alone():
        engine, loop = one_rank.make_step(task), bare.make_step(task)
        take_turns(SETTLING, engine, loop)
        return take_turns(task["epochs"], engine, loop)


def take_turns(epochs: int, step: Step, other: Step) -> Figures:
    beside: dict[str, list[float]] = {"seconds": [], "cpuSeconds": []}
    own: list[Figures] = []
    for epoch in range(epochs):
        own.append(time_epochs(1, step, first=epoch))
        theirs = time_epochs(1, other, first=epoch)
        beside["seconds"] += theirs.seconds
        beside["cpuSeconds"] += theirs.cpu_seconds
    return Figures(
        [f.seconds[0] for f in own],
        [f.loss[0] for f in own],
        own[-1].memory_bytes,
        cpu_seconds=[f.cpu_seconds[0] for f in own],
        beside=beside,
    )


if __name__ == "__main__":
    sys.exit(run_task(measure))
