"""What a calibration measures, by ranks that are processes of their own, as in training.

They are forks of one process, two for each core. As many ranks as there are cores time all small jobs at once, each a
stage of them, because that is what a pipeline does to a machine. In between one rank times some jobs alone, which tells
how ranks hold each other up. Then two ranks run small pipelines and ways and talk, and two for each of two cores run
another pipeline, which tells what taking turns costs.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import gnnpipe_trainer.worker  # noqa: F401  what every rank has loaded
from gnnpipe_trainer.endings import die_with_parent
from gnnpipe_trainer.peak import peak_resident_bytes
from gnnpipe_trainer.planning.fitting import Answer, Timings, typical
from gnnpipe_trainer.planning.runs import (
    CROWDED_RUN,
    RUNS,
    SWAPPING_RUNS,
    TALKING_RUNS,
    TINY_RUN,
    WHOLE_RUNS,
    Run,
    read_graphs,
    turns_run,
)
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.planning.talk import take_turns, talk

ROUNDS = 3  # in turns, so that all jobs see the same paces of the machine
WARMING_ROUNDS = (
    3  # until the heap fits all jobs, each after the other: what grows it takes up to twice as long
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
    benches = {run: Bench(run, graphs[run]) for run in RUNS} if rank < max(2, cores) else {}
    found |= _actions(rank, cores, benches)
    pairs = [benches[run] for run in TALKING_RUNS] if rank < 2 else []
    swappers = [Bench(run, graphs[run]) for run in SWAPPING_RUNS] if rank < 2 else []
    found |= talk(rank, pairs, swappers)
    dist.barrier()
    return found | take_turns(rank, turns)


def _baseline() -> int:
    """Memory of a rank that holds next to nothing: a fork has only those pages of torch that it has used."""
    tiny = Bench(TINY_RUN)
    for stage in range(TINY_RUN.stages):
        tiny.epoch(stage)
    return peak_resident_bytes()


def _actions(rank: int, cores: int, benches: dict[Run, Bench]) -> Answer:
    """Every job's actions on one of its stages; and processor time of some, alone and while all cores are busy."""
    chunked = {run: bench for run, bench in benches.items() if run.chunks > 1}
    for _ in range(WARMING_ROUNDS):
        for run, bench in chunked.items():
            bench.epoch(rank % run.stages)
    taken: dict[Run, list[Timings]] = {run: [] for run in benches}
    alone: dict[Run, list[Timings]] = {run: [] for run in (CROWDED_RUN, *WHOLE_RUNS)}

    def time_in_turns(crowded: Run, jobs: dict[Run, Bench]) -> None:
        dist.barrier()
        if rank == 0:
            alone[crowded].append(benches[crowded].epoch(0))
        dist.barrier()
        for run, bench in jobs.items():
            taken[run].append(bench.epoch(rank % run.stages))

    for _ in range(ROUNDS):
        time_in_turns(CROWDED_RUN, chunked)
    for run in WHOLE_RUNS:  # one after the other: each must have the heap as it needs it
        only = {name: bench for name, bench in benches.items() if name == run}
        for bench in only.values():
            for _ in range(bench.first_epochs):
                bench.epoch(0)
        for _ in range(ROUNDS):
            time_in_turns(run, only)
    found: Answer = {}
    if benches:
        found["together"] = [typical(taken[run]) for run in RUNS]
    if rank == 0:
        found["busy"] = {
            name: {"1": _total(alone, runs), str(cores): _total(taken, runs)}
            for name, runs in (("chunks", [CROWDED_RUN]), ("whole", WHOLE_RUNS))
        }
    return found


def _total(epochs: dict[Run, list[Timings]], runs: list[Run]) -> float:
    """Seconds of a typical epoch of each of these runs."""
    return sum(
        seconds for run in runs for actions in typical(epochs[run]).values() for seconds in actions.values()
    )
