"""Sentences for people: what staleness may do to this job, and which setting helps."""

from __future__ import annotations

from gnnpipe_api.job import GNNPipeJob, HistorySpec

OSCILLATES_BELOW = -0.3  # gradient autocorrelation; exact training stays well above (docs/staleness.md)
ADAMS_MOMENTUM = 0.9
MOST_DECAY = 0.99  # slower averages than this follow training no more


def oscillation_advice(job: GNNPipeJob, oscillation: float, stale_share: float) -> str:
    """Said once, when gradients of a few epochs apart begin to point against each other."""
    said = (
        f"Training swings: gradients a few epochs apart point against each other (autocorrelation "
        f"{oscillation:.2f}), and {stale_share:.0%} of what vertices read is history. "
    )
    return said + calmer(job.spec.parallelism.history, job.spec.training.learning_rate)


def calmer(history: HistorySpec, learning_rate: float) -> str:
    """The way out, by how much it costs: the history's rule, the learning rate, the cut."""
    if history.mode in ("previous", "shift"):
        first = f"spec.parallelism.history.mode is {history.mode}: use ema"
    elif history.mode == "frozen":
        first = "spec.parallelism.history.mode is frozen: use ema, or a larger refreshEvery"
    else:
        first = f"Raise spec.parallelism.history.decay from {history.decay:g} to {calmer_decay(history):g}"
    return (
        f"{first}; or lower spec.training.learningRate ({learning_rate:g}), "
        "or have less history read with fewer chunks or more ways"
    )


def calmer_decay(history: HistorySpec) -> float:
    """Half as fast an average, down to one of about a hundred epochs."""
    return max(history.decay, min(MOST_DECAY, round(1.0 - (1.0 - history.decay) / 2, 4)))


def stability_notice(job: GNNPipeJob, stale_share: float) -> str | None:
    """Before the first epoch: a sentence where theory expects history to unsettle training; None where not.

    Exact training with momentum b sharpens until learning rate x curvature is 2 (1 + b) / (1 - b), 38 with Adam. Read
    one epoch late, a share s of the feedback is stable only below 1 / s; a snapshot kept for long only while s < 1/2.
    """
    history, rate = job.spec.parallelism.history, job.spec.training.learning_rate
    momentum = momentum_of(job)
    if stale_share <= 0.0:
        return None
    if history.mode == "previous":
        factor = (1 - momentum) / (2 * (1 + momentum) * stale_share)
        if factor >= 1.0:
            return None
        return (
            f"spec.parallelism.history.mode: previous reads {stale_share:.0%} of the edge weight one epoch late, "
            f"which is stable up to about {factor:.2g} of the learning rate that exact training bears. "
            f"If {rate:g} was chosen for exact training, use mode ema, or a learning rate near {rate * factor:.1g}"
        )
    if history.mode == "frozen" and stale_share > 0.5:
        return (
            f"spec.parallelism.history.mode: frozen is stable only while history is less than half of what vertices "
            f"read, and here it is {stale_share:.0%}: use mode ema, fewer chunks or more ways"
        )
    least = least_decay(stale_share, momentum)
    if history.mode == "ema" and history.decay < least:
        return (
            f"spec.parallelism.history.decay: {history.decay:g} averages too little for a stale share of "
            f"{stale_share:.0%}; {least:.2g} or more is stable at any learning rate that exact training bears"
        )
    return None


def momentum_of(job: GNNPipeJob) -> float:
    training = job.spec.training
    return training.momentum if training.optimizer == "sgd" else ADAMS_MOMENTUM


def least_decay(stale_share: float, momentum: float = ADAMS_MOMENTUM) -> float:
    """What ema needs for a stale share s: 1 - decay <= 0.6 (1 - momentum) (1 - s) / s, a fit to the linear model."""
    return max(0.0, 1.0 - 0.6 * (1.0 - momentum) * (1.0 - stale_share) / stale_share)
