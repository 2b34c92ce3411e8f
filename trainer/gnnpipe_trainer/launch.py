"""Starts this machine's ranks with torchrun's agent and says in one sentence how they ended.

A laptop has one launch with all ranks; a cluster has one launch per pod, with static rendezvous at stage 0.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist
from filelock import FileLock, Timeout
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gnnpipe_api.contract import ExitCode
from gnnpipe_trainer.endings import (
    LOST_PEER_EXIT,
    PARENT,
    SCRATCH_PREFIX,
    STOP,
    STOPPED,
    Loss,
    die_with_parent,
    parent_lives,
    sentence_file,
)
from gnnpipe_trainer.rank_environment import ALLOCATOR

SHUTDOWN_SECONDS = 5  # once one rank has failed the others have nothing left to save
RENDEZVOUS_SECONDS = 24 * 3600  # other pods may wait for their nodes for long; the operator has the deadlines
LOCK_PATIENCE_SECONDS = 45  # a run that is just stopping may hold the folder so long


@dataclass(frozen=True)
class Place:
    """Which ranks run here, and where all of them meet."""

    ranks_here: int
    machines: int = 1
    machine: int = 0
    master_address: str = "127.0.0.1"
    master_port: int = 0  # 0: any free one

    @property
    def ranks(self) -> range:
        """Of the whole job, those that run here."""
        first = self.machine * self.ranks_here
        return range(first, first + self.ranks_here)

    @property
    def world(self) -> int:
        return self.ranks_here * self.machines

    def blame(self, lost: Sequence[int] = ()) -> ExitCode:
        """A machine whose own ranks are well says so: whoever restarts the job looks elsewhere for the culprit."""
        elsewhere = self.machines > 1 and not set(lost) & set(self.ranks)
        return ExitCode.LOST_PEER if elsewhere else ExitCode.FAILED


@dataclass(frozen=True)
class Outcome:
    code: int
    sentence: str = ""


def launch(place: Place, manifest: Path, out: Path, folder: Path, scratch: Path) -> Outcome:
    """Run the ranks to their end. `scratch` is a folder of the caller's that it removes afterwards."""
    arguments = ["-m", "gnnpipe_trainer.worker"]
    for name, path in (("manifest", manifest), ("out", out), ("folder", folder), ("scratch", scratch)):
        arguments += [f"--{name}", str(path)]
    config = LaunchConfig(
        min_nodes=place.machines,
        max_nodes=place.machines,
        nproc_per_node=place.ranks_here,
        run_id=os.environ.get("GNNPIPE_ATTEMPT", "0"),
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch)),
        shutdown_timeout=SHUTDOWN_SECONDS,
        signals_to_handle="SIGQUIT",  # the others are for _pass_on_stop
        **_rendezvous(place),
    )
    _set_rank_environment(place.world, scratch)
    try:
        with _pass_on_stop(scratch):
            elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return _explain(error.failures, scratch, place)
    except dist.DistError as error:  # the agent's own: it could not make, reach or keep the place to meet
        reason = str(error).splitlines()[0]
        return Outcome(place.blame(lost=[0]), f"stage 0, where all ranks meet, is not there: {reason}")
    if (scratch / STOPPED).exists():
        return Outcome(
            ExitCode.PREEMPTED, "was asked to stop; it wrote a checkpoint and will go on from there"
        )
    return Outcome(ExitCode.DONE)


@contextmanager
def _pass_on_stop(scratch: Path) -> Iterator[None]:
    """SIGTERM, Ctrl-C and a closed terminal are a word to the ranks, who write a checkpoint and leave.

    It is a file and not a signal: the agent itself ends ranks by SIGTERM when another has failed, and those
    have nothing to wait for.
    """

    def ask(number: int, frame: FrameType | None) -> None:
        (scratch / STOP).touch()

    here = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if here else ()
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _rendezvous(place: Place) -> dict[str, Any]:
    if place.machines == 1:
        return {
            "rdzv_backend": "c10d",
            "rdzv_endpoint": f"127.0.0.1:{place.master_port}",
            "local_addr": "127.0.0.1",
        }
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": f"{place.master_address}:{place.master_port}",
        "rdzv_configs": {"rank": place.machine, "timeout": RENDEZVOUS_SECONDS},
    }


def _set_rank_environment(ranks: int, scratch: Path) -> None:
    """Threads are shared out; large buffers are kept by the allocator instead of being mapped anew each time.

    Among all ranks of the job, wherever they run: the number of threads that add up a sum decides how it is
    rounded, so a job in pods, which like to be on one node anyway, learns bit for bit what it learns on a laptop.
    """
    os.environ[PARENT] = str(os.getpid())
    os.environ.setdefault(
        "TORCHINDUCTOR_CACHE_DIR", str(scratch / "inductor")
    )  # else it stays behind in /tmp
    threads = max(1, (os.cpu_count() or 1) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    for name, setting in ALLOCATOR.items():
        os.environ.setdefault(name, setting)


def _explain(failures: dict[int, ProcessFailure], scratch: Path, place: Place) -> Outcome:
    """The failure that caused the others, in a sentence that names its rank."""
    if loss := Loss.left_in(scratch):
        return Outcome(place.blame(loss.ranks), loss.sentence)
    rank, failure = min(failures.items(), key=lambda item: (_blame(item[1]), item[0]))
    name = f"rank {rank} of {place.world}"
    said = sentence_file(scratch, rank)
    sentence = said.read_text() if said.exists() else ""
    if failure.exitcode == ExitCode.INVALID:
        return Outcome(ExitCode.INVALID, sentence)
    if not sentence or failure.exitcode < 0:
        return Outcome(ExitCode.FAILED, f"{name} {_by_code(failure.exitcode)}")
    code = place.blame() if failure.exitcode == LOST_PEER_EXIT else ExitCode.FAILED
    return Outcome(code, f"{name}: {sentence}")


def _blame(failure: ProcessFailure) -> int:
    """Lower is nearer to the cause: a wrong manifest, a killed rank, an error, a lost neighbour."""
    if failure.exitcode == ExitCode.INVALID:
        return 0
    if failure.exitcode == -signal.SIGTERM:  # by the agent, because another one failed
        return 4
    if failure.exitcode < 0:
        return 1
    return 3 if failure.exitcode == LOST_PEER_EXIT else 2


def _by_code(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL); if nobody did, the machine ran out of memory"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def main() -> int:
    """`python -m gnnpipe_trainer.launch RANKS MANIFEST OUT FOLDER SCRATCH`: a local run's agent process."""
    parent = os.environ.get(PARENT)
    die_with_parent(signal.SIGTERM)
    ranks, *paths = sys.argv[1:]
    manifest, out, folder, scratch = map(Path, paths)
    try:
        with FileLock(out / ".lock", timeout=LOCK_PATIENCE_SECONDS):
            _clear_away_scratch(out, but=scratch)
            outcome = launch(Place(int(ranks)), manifest, out, folder, scratch)
    except Timeout:
        outcome = Outcome(ExitCode.INVALID, f"another run is using {out}; wait for it or name another --out")
    (scratch / "outcome.txt").write_text(outcome.sentence)
    if not parent_lives(parent):
        shutil.rmtree(scratch, ignore_errors=True)  # whoever started this run is gone and cannot
    return outcome.code


def _clear_away_scratch(out: Path, but: Path) -> None:
    """Of runs that were killed outright, agent and all. The caller holds the lock."""
    for left in out.glob(f"{SCRATCH_PREFIX}*/"):
        if left.name != but.name:
            shutil.rmtree(left, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
