"""`auto` in spec.parallelism, settled by the planner where the graph can be seen."""

from __future__ import annotations

import os
from pathlib import Path

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.planning.choose import best_plan
from gnnpipe_trainer.planning.main import make_planner


def settle(job: GNNPipeJob, manifest_folder: Path, ranks: int | None = None) -> GNNPipeJob:
    """The same job with a number in place of every auto; a job without auto comes back as it is.

    Called once, before ranks start: everything after it sees numbers only. The operator, which has no graph, uses
    the rule of gnnpipe_api.plan.resolve_auto and puts its numbers into the pods in the same way.
    """
    asked = job.spec.parallelism
    if "auto" not in (asked.stages, asked.ways, asked.chunks):
        return job
    plan = best_plan(make_planner(job, manifest_folder), ranks or ranks_here())
    numbers = {"stages": plan.stages, "ways": plan.ways, "chunks": plan.chunks}
    spec = job.spec.model_copy(update={"parallelism": asked.model_copy(update=numbers)})
    return job.model_copy(update={"spec": spec})


def ranks_here() -> int:
    """GPUs of this machine, or cores where it has none."""
    import torch

    return torch.cuda.device_count() or len(os.sched_getaffinity(0))
