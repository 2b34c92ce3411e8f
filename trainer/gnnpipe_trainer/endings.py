"""How the ranks of one launch and their launcher tell each other about ends and beginnings.

Light to import: the launcher waits for ranks and needs nothing of what they compute with.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from gnnpipe_trainer.whole_file import write_whole

# Exit codes inside one launch only; the launcher turns them into those of the contract.
LOST_PEER_EXIT = 70  # another rank is the cause, this one noticed
HUNG_PEER_EXIT = 71  # another rank does not answer; the sentence names it

PARENT = "GNNPIPE_PARENT"  # environment: process id of whoever started this process

BEATS = "GNNPIPE_BEATS"  # environment: the pipe through which a rank tells its launcher that it lives
BEAT, LAST_BEAT = b".", b"!"  # after the last one nobody waits for another

SCRATCH_PREFIX = ".run-"  # a local launch's scratch folder, inside the run's output folder

# Files in the launch's scratch folder.
STOP = "stop"  # the launcher was asked to stop; ranks write a checkpoint and leave
STOPPED = "stopped"  # the ranks here have done so
LOST = "lost.json"  # which ranks do not answer
STARTED = "started.json"  # where rank 0 begins


@dataclass(frozen=True)
class Loss:
    """Ranks that are gone or do not answer, and the sentence that names them."""

    ranks: list[int]
    sentence: str

    def words(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(words: str | bytes) -> Loss:
        return Loss(**json.loads(words))

    def leave_in(self, scratch: Path) -> None:
        """For the launcher, and for ranks that lose the store before they have read it there."""
        write_whole(scratch / LOST, self.words(), writer=str(os.getpid()))  # several ranks may say it at once

    @staticmethod
    def left_in(scratch: Path) -> Loss | None:
        path = scratch / LOST
        return Loss.of(path.read_text()) if path.exists() else None


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
