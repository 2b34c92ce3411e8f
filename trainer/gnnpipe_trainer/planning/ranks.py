"""What a calibration measures, by ranks that are processes of their own, as in training.

They are forks of one process, two for each core. As many ranks as there are cores time all small jobs at once,
because that is what a pipeline does to a machine. Then one job is timed by one rank and by one for each core, which
tells how ranks hold each other up. Then two ranks run small pipelines and talk, and two for each of two cores run
another, which tells what taking turns costs.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import traceback
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import gnnpipe_trainer.worker  # noqa: F401  what every rank has loaded
from gnnpipe_trainer.endings import die_with_parent
from gnnpipe_trainer.peak import peak_resident_bytes
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.fitting import Answer, Timings, typical
from gnnpipe_trainer.planning.runs import CROWDED_RUN, RUNS, TALKING_RUNS, TINY_RUN, read_graphs, turns_run
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.planning.talk import take_turns, talk

ROUNDS = 2  # in turns, so that all jobs see the same paces of the machine
SINGLE_SLOT_EPOCHS = (
    3  # the last of which counts: until a heap fits all its tensors, an epoch takes twice as long
)


def run_ranks(cores: int, port: int, folder: Path) -> int:
    """Each rank leaves its answer in the folder, where the graphs lie."""
    ranks = 2 * cores
    meet = partial(dist.init_process_group, "gloo", init_method=f"tcp://127.0.0.1:{port}", world_size=ranks)

    def work(rank: int) -> None:
        die_with_parent(signal.SIGKILL)
        torch.set_num_threads(1)
        meet(rank=rank)
        found = _measure(rank, cores, folder)
        dist.barrier()
        dist.destroy_process_group()
        (folder / f"rank{rank}.json").write_text(json.dumps(found))

    forked = [_fork(partial(work, rank)) for rank in range(ranks)]
    return max([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked], key=abs)


def _fork(work: Callable[[], None]) -> int:
    """A process that has loaded what this one has, as ranks in training are (nursery.py); its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _measure(rank: int, cores: int, folder: Path) -> Answer:
    found: Answer = {"baseline": _baseline()} if rank == 0 else {}
    graphs = read_graphs(folder)
    turns = Bench(turns_run(cores), graphs[turns_run(cores)])
    benches = {}
    if rank < max(2, cores):
        benches = {run: Bench(run, graphs[run]) for run in RUNS}
        for bench in benches.values():
            _settled_epoch(bench)
    dist.barrier()
    if benches:
        rounds = [[_settled_epoch(benches[run]) for run in RUNS] for _ in range(ROUNDS)]
        found["together"] = [typical(epochs) for epochs in zip(*rounds, strict=True)]
    found["busy"] = _crowding(rank, {1, cores}, benches.get(CROWDED_RUN))
    if rank == 0:
        found["amounts"] = [benches[run].amounts() for run in RUNS]
        found["turnsCut"] = _as_lists(turns.counted())
    found |= talk(rank, [benches[run] for run in TALKING_RUNS] if rank < 2 else [])
    dist.barrier()
    return found | take_turns(rank, turns)


def _baseline() -> int:
    """Memory of a rank that holds next to nothing: a fork has only those pages of torch that it has used."""
    tiny = Bench(TINY_RUN)
    tiny.epoch()
    return peak_resident_bytes()


def _settled_epoch(bench: Bench) -> Timings:
    """A single slot keeps all its tensors until its backward, and other jobs have used the heap meanwhile."""
    for _ in range(SINGLE_SLOT_EPOCHS - 1 if bench.plan.chunks == 1 else 0):
        bench.epoch()
    return bench.epoch()


def _as_lists(cut: Cut) -> dict[str, list[list[float]]]:
    return {
        field.name: getattr(cut, field.name).tolist() for field in fields(cut) if field.name != "estimated"
    }


def _crowding(rank: int, crowds: set[int], bench: Bench | None) -> dict[str, float]:
    """Processor time of the same work while so many ranks do it, in turns."""
    taken: dict[int, list[float]] = {crowd: [] for crowd in sorted(crowds) if rank < crowd}
    for _ in range(ROUNDS):
        for crowd in sorted(crowds):
            dist.barrier()
            if bench is not None and rank < crowd:
                taken[crowd].append(_total(bench.epoch()))
    dist.barrier()
    return {str(crowd): statistics.median(times) for crowd, times in taken.items()}


def _total(timings: Timings) -> float:
    return sum(seconds for stage in timings for seconds in stage.values())
