"""Starts this machine's ranks, stays until they end, and says in one sentence how they ended.

A laptop has one launch with all ranks; a cluster has one launch per pod, and all meet at stage 0. Ranks find in their
environment what torchrun would tell them. They are no programs of torchrun's because they are forks (nursery.py): its
agent starts programs anew, each of which would import torch again, and of functions that it forks it keeps only one
exit code, after as much as 30 s for a rank that has stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType

import torch.distributed as dist
from filelock import FileLock, Timeout

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer import worker
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
from gnnpipe_trainer.meeting import Meeting
from gnnpipe_trainer.nursery import LISTEN_SECONDS, Nursery
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.watchdog import name_of

SHUTDOWN_SECONDS = 5  # once one rank has failed the others have nothing left to save
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


def rank_nursery(place: Place) -> Nursery:
    """The ranks that run here, forked and waiting. Before this process starts threads or reads data."""
    import_module("torch._dynamo")  # which optimizers ask for in their first step
    return Nursery(worker.main, place.ranks_here)


def launch(place: Place, nursery: Nursery, manifest: Path, out: Path, folder: Path, scratch: Path) -> Outcome:
    """Run the ranks to their end. `scratch` is a folder of the caller's that it removes afterwards."""
    arguments = []
    for name, path in (("manifest", manifest), ("out", out), ("folder", folder), ("scratch", scratch)):
        arguments += [f"--{name}", str(path)]
    try:
        with closing(
            Meeting(place.machine, place.machines, place.master_address, place.master_port)
        ) as meeting:
            meeting.await_all()
            with _pass_on_stop(scratch):
                for local_rank, process in enumerate(nursery.ranks):
                    process.order(_rank_environment(place, local_rank, meeting.port), arguments)
                codes = _attend(nursery, place, manifest, scratch)
                if not any(codes.values()):
                    meeting.leave()
    except dist.DistError as error:  # the place to meet could not be made, reached or kept
        reason = str(error).splitlines()[0]
        return Outcome(place.blame(lost=[0]), f"stage 0, where all ranks meet, is not there: {reason}")
    if any(codes.values()):
        return _explain(codes, scratch, place)
    if (scratch / STOPPED).exists():
        return Outcome(
            ExitCode.PREEMPTED, "was asked to stop; it wrote a checkpoint and will go on from there"
        )
    return Outcome(ExitCode.DONE)


def _attend(nursery: Nursery, place: Place, manifest: Path, scratch: Path) -> dict[int, int]:
    """Until all ranks here have ended well, or one has not and the others are ended too; their exit codes."""
    job = parse_job(json.loads(manifest.read_text()))
    plan, patience = make_plan(job), job.spec.training.stall_timeout_seconds
    topology = Topology(plan.stages, plan.ways, place.ranks[0])
    ranks = dict(zip(place.ranks, nursery.ranks, strict=True))
    while nursery.living and not any(process.exitcode for process in nursery.ranks):
        nursery.listen(LISTEN_SECONDS)
        for rank, process in ranks.items():
            if process.silent_seconds > patience:  # where there are others, they were faster
                sentence = f"{name_of(topology, rank)} has not answered for {process.silent_seconds:.0f} s"
                Loss([rank], sentence).leave_in(scratch)  # before its end is seen: the end is not the cause
                process.send(signal.SIGKILL)
    nursery.end(SHUTDOWN_SECONDS)
    return {rank: process.exitcode or 0 for rank, process in ranks.items()}


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


def _rank_environment(place: Place, local_rank: int, port: int) -> Mapping[str, str]:
    """By the names that torchrun gives them."""
    return {
        "RANK": str(place.ranks[local_rank]),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_WORLD_SIZE": str(place.ranks_here),
        "GROUP_RANK": str(place.machine),
        "GROUP_WORLD_SIZE": str(place.machines),
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": str(True),  # ranks are guests of the launcher's store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _explain(codes: dict[int, int], scratch: Path, place: Place) -> Outcome:
    """The failure that caused the others, in a sentence that names its rank."""
    if loss := Loss.left_in(scratch):
        return Outcome(place.blame(loss.ranks), loss.sentence)
    rank, code = min(codes.items(), key=lambda item: (_blame(item[1]), item[0]))
    name = f"rank {rank} of {place.world}"
    said = sentence_file(scratch, rank)
    sentence = said.read_text() if said.exists() else ""
    if code == ExitCode.INVALID:
        return Outcome(ExitCode.INVALID, sentence)
    if not sentence or code < 0:
        return Outcome(ExitCode.FAILED, f"{name} {_by_code(code)}")
    blame = place.blame() if code == LOST_PEER_EXIT else ExitCode.FAILED
    return Outcome(blame, f"{name}: {sentence}")


def _blame(code: int) -> int:
    """Lower is nearer to the cause: a wrong manifest, a killed rank, an error, a lost neighbour."""
    if code == ExitCode.INVALID:
        return 0
    if code == ExitCode.DONE:
        return 5
    if code == -signal.SIGTERM:  # by this launcher, because another one failed
        return 4
    if code < 0:
        return 1
    return 3 if code == LOST_PEER_EXIT else 2


def _by_code(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL); if nobody did, the machine ran out of memory"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def main() -> int:
    """`python -m gnnpipe_trainer.launch RANKS MANIFEST OUT FOLDER SCRATCH`: a local run's launcher."""
    parent = os.environ.get(PARENT)
    die_with_parent(signal.SIGTERM)
    ranks, *paths = sys.argv[1:]
    manifest, out, folder, scratch = map(Path, paths)
    place = Place(int(ranks))
    try:
        with rank_nursery(place) as nursery, FileLock(out / ".lock", timeout=LOCK_PATIENCE_SECONDS):
            _clear_away_scratch(out, but=scratch)
            outcome = launch(place, nursery, manifest, out, folder, scratch)
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
