"""What a calibration measures, by ranks that are processes of their own, as in training.

The first rank forks the others: two for each core. As many ranks as there are cores time all small jobs at once,
because that is what a pipeline does to a machine. Then one job is timed by one rank and by one for each core, which
tells how ranks hold each other up. Then two ranks run small pipelines and talk, and two for each of two cores run
another, which tells what taking turns costs.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from dataclasses import fields
from pathlib import Path

import torch
import torch.distributed as dist

import gnnpipe_trainer.train  # noqa: F401  what every rank has loaded
from gnnpipe_trainer.endings import die_with_parent
from gnnpipe_trainer.peak import peak_resident_bytes
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.fitting import Answer, Timings, typical
from gnnpipe_trainer.planning.runs import CROWDED_RUN, RUNS, TALKING_RUNS, read_graphs, turns_run
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.planning.talk import take_turns, talk

ROUNDS = 2  # in turns, so that all jobs see the same paces of the machine


def run_ranks(cores: int, port: int, folder: Path) -> int:
    """Each rank leaves its answer in the folder, where the graphs lie."""
    torch.set_num_threads(1)
    _load_optimizer()
    ranks = 2 * cores
    rank = _fork(ranks)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    found = _measure(rank, cores, folder)
    dist.barrier()
    dist.destroy_process_group()
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    if rank > 0:
        os._exit(0)
    return 0


def _fork(ranks: int) -> int:
    """The rank of this process from here on: what all have loaded is loaded once."""
    for rank in range(1, ranks):
        if os.fork() == 0:
            die_with_parent(signal.SIGKILL)
            return rank
    return 0


def _load_optimizer() -> None:
    """Its first step loads a part of torch that every training rank holds."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.Adam([weight]).step()


def _measure(rank: int, cores: int, folder: Path) -> Answer:
    found: Answer = {"baseline": peak_resident_bytes()} if rank == 0 else {}
    graphs = read_graphs(folder)
    turns = Bench(turns_run(cores), graphs[turns_run(cores)])
    benches = {}
    if rank < max(2, cores):
        benches = {run: Bench(run, graphs[run]) for run in RUNS}
        for bench in benches.values():
            bench.epoch()
    dist.barrier()
    if benches:
        rounds = [[benches[run].epoch() for run in RUNS] for _ in range(ROUNDS)]
        found["together"] = [typical(epochs) for epochs in zip(*rounds, strict=True)]
    found["busy"] = _crowding(rank, {1, cores}, benches.get(CROWDED_RUN))
    if rank == 0:
        found["amounts"] = [benches[run].amounts() for run in RUNS]
        found["turnsCut"] = _as_lists(turns.counted())
    found |= talk(rank, [benches[run] for run in TALKING_RUNS] if rank < 2 else [])
    dist.barrier()
    return found | take_turns(rank, turns)


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
