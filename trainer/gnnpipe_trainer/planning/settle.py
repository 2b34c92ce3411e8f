"""`auto` in spec.parallelism, settled by the planner where the graph can be seen."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan, with_numbers
from gnnpipe_trainer.planning.choose import choose_for_auto
from gnnpipe_trainer.planning.main import make_planner


@dataclass(frozen=True)
class Settled:
    """A job with a number in place of every auto."""

    job: GNNPipeJob
    plan: Plan
    reason: str


def settle(job: GNNPipeJob, manifest_folder: Path, most_ranks: int) -> Settled:
    """Called once for a job that says auto, before ranks start: everything after it sees numbers only."""
    asked = job.spec.parallelism
    planner = make_planner(job, manifest_folder)
    choice = choose_for_auto(planner, max(most_ranks, asked.fixed_ranks))
    plan = choice.best.plan
    return Settled(with_numbers(job, plan.stages, plan.ways, plan.chunks), plan, choice.reason)


def ranks_here(job: GNNPipeJob) -> int:
    """How many ranks auto may take on this machine: its GPUs, or its cores where it has none."""
    import torch

    here = torch.cuda.device_count() or len(os.sched_getaffinity(0))
    return min(here, job.spec.parallelism.max_ranks or here)
