"""What every program that is compared does alike: read its task, time its epochs, write its figures."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnnpipe_trainer.endings import die_with_parent
from gnnpipe_trainer.peak import peak_resident_bytes

Step = Callable[[int], float]
"""One epoch with the optimizer's step: from the epoch's number to the loss."""


@dataclass(frozen=True)
class Figures:
    """One run of one mode, epoch by epoch."""

    seconds: list[float]
    loss: list[float]
    memory_bytes: list[int]  # highest of each process
    idle: list[float] = field(default_factory=list)  # mean over ranks of the share of the epoch spent waiting
    sent_bytes: dict[str, int] = field(default_factory=dict)  # of one epoch, by kind
    cpu_seconds: list[float] = field(default_factory=list)  # says what a busy machine's clock cannot
    beside: dict[str, list[float]] = field(
        default_factory=dict
    )  # the other's, by clock, where two take turns


def time_epochs(epochs: int, step: Step, first: int = 0) -> Figures:
    seconds, cpu_seconds, losses = [], [], []
    for epoch in range(first, first + epochs):
        start, cpu_start = time.perf_counter(), time.process_time()
        losses.append(step(epoch))
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    return Figures(seconds, losses, [peak_resident_bytes()], cpu_seconds=cpu_seconds)


def run_task(measure: Callable[[dict[str, Any]], Figures]) -> int:
    """`python -m ... TASK RESULT`: both are JSON files."""
    die_with_parent(signal.SIGKILL)
    task, result = map(Path, sys.argv[1:])
    figures = measure(json.loads(task.read_text()))
    beside = result.with_suffix(".new")
    beside.write_text(json.dumps(asdict(figures)))
    os.replace(beside, result)
    return 0
