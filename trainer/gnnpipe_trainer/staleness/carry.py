"""What `history.gradients: auto` and `history.correction: auto` come to."""

from __future__ import annotations

from typing import Literal

from gnnpipe_api.job import GNNPipeJob, HistorySpec, ParallelismSpec

Carried = Literal["drop", "last", "average"]
Correction = Literal["none", "mean"]

LEAST_STALE_EDGES = (
    0.3  # between the graphs that earlier gradients help and those they harm (docs/staleness.md)
)
LEAST_TO_CORRECT = 0.15  # between a graph where following the mean gained nothing and those where it did


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


def correction(history: HistorySpec, follows_mean: bool, stale_edges: float) -> Correction:
    """As asked for. auto: the mean's where blocks say so and enough is stale; other modes stay as they are known."""
    if history.correction != "auto":
        return history.correction
    helps = follows_mean and stale_edges >= LEAST_TO_CORRECT
    return "mean" if helps and history.mode == "ema" else "none"


def with_history(job: GNNPipeJob, gradients: Carried, corrected: Correction) -> GNNPipeJob:
    """The job as if its manifest had asked for these."""
    parallelism = job.spec.parallelism
    update = {"gradients": gradients, "correction": corrected}
    history = parallelism.history.model_copy(update=update)
    parallelism = parallelism.model_copy(update={"history": history})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})
