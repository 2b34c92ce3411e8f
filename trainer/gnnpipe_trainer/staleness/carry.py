"""What `history.gradients: auto`, `history.correction: auto` and `training.averaging.mode: auto` come to."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gnnpipe_api.job import Averaging, GNNPipeJob, HistorySpec, ParallelismSpec

Carried = Literal["drop", "last", "average"]
Correction = Literal["none", "mean"]
Averaged = Literal["none", "ema", "tail"]

LEAST_STALE_EDGES = (
    0.3  # between the graphs where stale edges cost much and those where they do not (docs/staleness.md)
)
LEAST_TO_CORRECT = 0.15  # between a graph where following the mean gained nothing and those where it did
# Weights are averaged over about the last so-manieth part of the epochs so far: the short tail is young enough while
# training is quick, the long one smooth enough when it is slow (docs/staleness.md).
TAILS = {"short": 16, "long": 4}
MOST_LAYERS = 4  # that averaged gradients have always let learn; eight they can keep at chance


class Traits(NamedTuple):
    """What the choice depends on in a model."""

    layers: int  # aggregations one after another
    bypass: bool  # blocks let a vertex's own state by
    summed: bool  # all aggregations are weighted sums


def carried(parallelism: ParallelismSpec, model: Traits, stale_edges: float) -> Carried:
    """As asked for. auto: those of earlier epochs where they help, which is known before the first epoch.

    stale_edges is the share of edges that read history, on average over the epochs. Where blocks have a bypass, a cut
    gradient shifts the weight between paths of more and of fewer aggregations, which last epoch's makes up for. Where
    everything flows through neighbours, an average makes a shallow model learn sooner, and can keep a deep one from
    learning at all.
    """
    asked = parallelism.history.gradients
    if asked != "auto":
        return asked
    made_up = parallelism.fresh_gradient_factor != 1.0
    if made_up or stale_edges < LEAST_STALE_EDGES:
        return "drop"
    if model.bypass:
        return "last"
    return "average" if model.summed and model.layers <= MOST_LAYERS else "drop"


def correction(history: HistorySpec, follows_mean: bool, stale_edges: float) -> Correction:
    """As asked for. auto: the mean's where blocks say so and enough is stale; other modes stay as they are known."""
    if history.correction != "auto":
        return history.correction
    helps = follows_mean and stale_edges >= LEAST_TO_CORRECT
    return "mean" if helps and history.mode == "ema" else "none"


def averaged(averaging: Averaging, stale_edges: float) -> Averaged:
    """As asked for. auto: where much is stale, which makes training's course rough."""
    if averaging.mode != "auto":
        return averaging.mode
    return "tail" if stale_edges >= LEAST_STALE_EDGES else "none"


def with_history(job: GNNPipeJob, gradients: Carried, corrected: Correction) -> GNNPipeJob:
    """The job as if its manifest had asked for these."""
    parallelism = job.spec.parallelism
    update = {"gradients": gradients, "correction": corrected}
    history = parallelism.history.model_copy(update=update)
    parallelism = parallelism.model_copy(update={"history": history})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})


def with_averaging(job: GNNPipeJob, mode: Averaged) -> GNNPipeJob:
    """The job as if its manifest had asked for this mode."""
    training = job.spec.training
    averaging = training.averaging.model_copy(update={"mode": mode})
    training = training.model_copy(update={"averaging": averaging})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
