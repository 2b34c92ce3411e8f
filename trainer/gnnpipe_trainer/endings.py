"""How the ranks of one launch and their launcher tell each other about ends and beginnings.

Light to import: the launcher waits for ranks and needs nothing of what they compute with.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

# Exit codes inside one launch only; the launcher turns them into those of the contract.
LOST_PEER_EXIT = 70  # another rank is the cause, this one noticed
HUNG_PEER_EXIT = 71  # another rank does not answer; the sentence names it

PARENT = "GNNPIPE_PARENT"  # environment: process id of whoever started this process

SCRATCH_PREFIX = ".run-"  # a local launch's scratch folder, inside the run's output folder

# Files in the launch's scratch folder.
STOP = "stop"  # the launcher was asked to stop; ranks write a checkpoint and leave
STOPPED = "stopped"  # the ranks here have done so
HUNG = "hung"  # which rank does not answer, in a sentence
STARTED = "started.json"  # where rank 0 begins


def sentence_file(scratch: Path, rank: int) -> Path:
    """Why a rank failed, in its own words."""
    return scratch / f"rank{rank}.txt"


def pid_file(scratch: Path, rank: int) -> Path:
    return scratch / f"rank{rank}.pid"


def die_with_parent(end: signal.Signals) -> None:
    """If the process that started this one is killed outright, this one is sent `end`."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, end)
    if not parent_lives(os.environ.get(PARENT)):
        os.kill(os.getpid(), end)  # it died before it could be watched


def parent_lives(parent: str | None) -> bool:
    """`parent` is its process id; None where nobody said it."""
    return parent is None or os.getppid() == int(parent)
