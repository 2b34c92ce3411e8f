"""Starts this machine's ranks with torchrun's agent and says in one sentence how they ended.

A laptop has one launch with all ranks; a cluster has one launch per pod, with static rendezvous at stage 0.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gnnpipe_api.contract import ExitCode
from gnnpipe_trainer.worker import LOST_PEER_EXIT

SHUTDOWN_SECONDS = 5  # once one rank has failed the others have nothing left to save


@dataclass(frozen=True)
class Place:
    """Which ranks run here, and where all of them meet."""

    ranks_here: int
    machines: int = 1
    machine: int = 0
    master_address: str = "127.0.0.1"
    master_port: int = 0  # 0: any free one


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
        **_rendezvous(place),
    )
    _set_rank_environment(place.ranks_here)
    try:
        elastic_launch(config, sys.executable)(*arguments)
    except ChildFailedError as error:
        return _explain(error.failures, scratch, place)
    return Outcome(ExitCode.DONE)


def _rendezvous(place: Place) -> dict[str, object]:
    if place.machines == 1:
        return {"rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{place.master_port}", "local_addr": "127.0.0.1"}
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": f"{place.master_address}:{place.master_port}",
        "rdzv_configs": {"rank": place.machine},
    }


def _set_rank_environment(ranks_here: int) -> None:
    """Threads are shared out; large buffers are kept by the allocator instead of being mapped anew each time."""
    threads = max(1, (os.cpu_count() or 1) // ranks_here)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 30))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(4 << 30))


def _explain(failures: dict[int, ProcessFailure], scratch: Path, place: Place) -> Outcome:
    """The failure that caused the others, in a sentence that names its rank."""
    rank, failure = min(failures.items(), key=lambda item: (_blame(item[1]), item[0]))
    stage = f"rank {rank}" if place.ranks_here == 1 else f"rank {rank} of {place.ranks_here * place.machines}"
    said = scratch / f"rank{rank}.txt"
    sentence = said.read_text() if said.exists() else _by_code(failure.exitcode)
    if failure.exitcode == ExitCode.INVALID:
        return Outcome(ExitCode.INVALID, sentence)
    return Outcome(
        failure.exitcode if failure.exitcode == ExitCode.PREEMPTED else ExitCode.FAILED,
        f"{stage} {sentence}" if not said.exists() or failure.exitcode == LOST_PEER_EXIT else f"{stage}: {sentence}",
    )


def _blame(failure: ProcessFailure) -> int:
    """Lower is nearer to the cause: a wrong manifest, a killed process, an error, a lost neighbour."""
    if failure.exitcode == ExitCode.INVALID:
        return 0
    if failure.exitcode < 0:
        return 1
    return 3 if failure.exitcode in (LOST_PEER_EXIT, ExitCode.PREEMPTED) else 2


def _by_code(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL); if nobody did, the machine ran out of memory"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def main() -> int:
    """`python -m gnnpipe_trainer.launch RANKS MANIFEST OUT FOLDER SCRATCH`: a local run's agent process."""
    ranks, *paths = sys.argv[1:]
    manifest, out, folder, scratch = map(Path, paths)
    outcome = launch(Place(int(ranks)), manifest, out, folder, scratch)
    (scratch / "outcome.txt").write_text(outcome.sentence)
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
