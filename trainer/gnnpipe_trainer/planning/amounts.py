"""The work in a calibration's small jobs, counted as the planner counts it. No torch: see runs.py."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.pipeline.schedule import epoch_schedule
from gnnpipe_trainer.planning.cut import Cut, count_cut
from gnnpipe_trainer.planning.forecast import UPDATE_PASSES
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.work import StageWork

Amounts = list[dict[str, dict[str, float]]]  # by stage and action: units of work of all slots

REFRESH, STEP = "refresh", "step"  # what an epoch has besides F, I, W and B


def amounts_of(job: GNNPipeJob, graph: ChunkedGraph) -> Amounts:
    plan, counted = make_plan(job), counted_cut(job, graph)
    shape = built_in_shape(job.spec.model, graph.num_features, graph.num_classes)
    found = []
    for stage, layers in enumerate(plan.layers_per_stage):
        first = plan.first_layer(stage)
        work = StageWork(shape, first, layers, job.spec.parallelism)
        schedule = epoch_schedule(plan.stages, stage, counted.slots, job.spec.parallelism.split_backward)
        actions = {}
        for kind, amounts in work.amounts(counted).items():
            done = [action.position for action in schedule if action.work is kind and action.move is None]
            actions[str(kind)] = {unit: float(amount[:, done].sum()) for unit, amount in amounts.items()}
        actions[REFRESH] = {"refresh": work.entries_to_sort_out(counted)}
        actions[STEP] = {"epoch": 1.0, "row": float(UPDATE_PASSES * shape.parameters(first, layers))}
        found.append(actions)
    return found


def counted_cut(job: GNNPipeJob, graph: ChunkedGraph) -> Cut:
    plan = make_plan(job)
    chunk_of = np.repeat(np.arange(graph.num_chunks), np.diff(graph.bounds))
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
    return count_cut(graph.indices.astype(np.int64), targets, chunk_of, plan.ways, plan.chunks)


def as_lists(cut: Cut) -> dict[str, list[list[float]]]:
    return {
        field.name: getattr(cut, field.name).tolist() for field in fields(cut) if field.name != "estimated"
    }
