"""The engine as one rank in one process, timed as the programs that it is compared with are.

A job with one stage takes the whole graph as one slot, because it has nothing to overlap with. With slots "in turn"
it takes its chunks one after another, as a stage of a pipeline does, and shows what chunking itself costs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.bench.epochs import Figures, Step, run_task, time_epochs
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline.engine import Engine, make_groups
from gnnpipe_trainer.pipeline.topology import Topology


def measure(task: dict[str, Any]) -> Figures:
    """The manifest has one stage and one way; task["slots"]: whole, or in turn."""
    with alone():
        return time_epochs(task["epochs"], make_step(task))


@contextmanager
def alone() -> Iterator[None]:
    """A world of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()


def make_step(task: dict[str, Any]) -> Step:
    """One epoch of the engine, with the optimizer's step."""
    job = parse_job(task["manifest"])
    plan = make_plan(job)
    folder = Path(task["folder"])
    graph = chunked_graph(job.spec.graph, 1, plan.chunks, folder)
    torch.manual_seed(job.spec.training.seed)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, folder)
    topology = Topology(1, 1, 0)
    groups = make_groups(topology, job.spec.training.stall_timeout_seconds)
    slots = plan.chunks if task["slots"] == "in turn" else 1
    engine = Engine(job, plan, graph, model, topology, groups, torch.device("cpu"), slots=slots)
    engine.exact_pass(fill_history=True)
    optimizer = make_optimizer(job.spec.training, engine.parameters)

    def step(epoch: int) -> float:
        loss = engine.train_epoch(epoch).loss
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


if __name__ == "__main__":
    sys.exit(run_task(measure))
