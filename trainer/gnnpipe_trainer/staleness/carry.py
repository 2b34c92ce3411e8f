"""Which gradient flows back to neighbours that history served: `history.gradients: auto`, decided."""

from __future__ import annotations

from typing import Literal

from gnnpipe_api.job import GNNPipeJob, ParallelismSpec

Carried = Literal["drop", "last", "average"]

LEAST_STALE_EDGES = (
    0.3  # between the graphs that earlier gradients help and those they harm (docs/staleness.md)
)


def carried(parallelism: ParallelismSpec, bypass: bool, summed: bool, stale_edges: float) -> Carried:
    """As asked for. auto: earlier epochs' where they help, which two things tell before the first epoch.

    stale_edges is the share of edges that read history, on average over the epochs. bypass says whether blocks let a
    vertex's own state by: a cut gradient then shifts the weight between paths of more and of fewer aggregations, which
    last epoch's makes up for. Without, everything flows through neighbours: a gradient that is an epoch late makes
    training slow, its average quick. summed: all blocks are weighted sums, for others there is no average.
    """
    asked = parallelism.history.gradients
    if asked != "auto":
        return asked
    made_up = parallelism.fresh_gradient_factor != 1.0
    if made_up or stale_edges < LEAST_STALE_EDGES:
        return "drop"
    if bypass:
        return "last"
    return "average" if summed else "drop"


def with_carried(job: GNNPipeJob, gradients: Carried) -> GNNPipeJob:
    """The job as if its manifest had asked for these."""
    parallelism = job.spec.parallelism
    history = parallelism.history.model_copy(update={"gradients": gradients})
    parallelism = parallelism.model_copy(update={"history": history})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})
