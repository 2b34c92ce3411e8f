"""Which gradient flows back to neighbours that history served: `history.gradients: auto`, decided."""

from __future__ import annotations

from typing import Literal

from gnnpipe_api.job import GNNPipeJob, ParallelismSpec

Carried = Literal["drop", "last", "average"]

LEAST_STALE_EDGES = (
    0.3  # between the graphs that last epoch's gradient helps and those it harms (docs/staleness.md)
)


def carried(parallelism: ParallelismSpec, bypass: bool, stale_edges: float) -> Carried:
    """As asked for. auto: last epoch's where it helps, which two things tell before the first epoch.

    stale_edges is the share of edges that read history, on average over the epochs. bypass says whether blocks let a
    vertex's own state by: a cut gradient then shifts the weight between paths of more and of fewer aggregations.
    Without, all paths have as many, the cut shortens them alike, and an optimizer like Adam makes up for that.
    """
    asked = parallelism.history.gradients
    if asked != "auto":
        return asked
    made_up = parallelism.fresh_gradient_factor != 1.0
    return "last" if bypass and stale_edges >= LEAST_STALE_EDGES and not made_up else "drop"


def with_carried(job: GNNPipeJob, gradients: Carried) -> GNNPipeJob:
    """The job as if its manifest had asked for these."""
    parallelism = job.spec.parallelism
    history = parallelism.history.model_copy(update={"gradients": gradients})
    parallelism = parallelism.model_copy(update={"history": history})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})
