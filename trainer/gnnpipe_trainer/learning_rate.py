"""The learning rate of each epoch: a pure function of the manifest.

So all ranks step alike, a checkpoint has nothing of it to keep, and a job that is taken up again goes on where the
curve was. Whatever trains for its result steps through here; what only measures time keeps the rate that it began with.
"""

from __future__ import annotations

import math

from gnnpipe_api.job import LearningRateSchedule, TrainingSpec


def rate_factor(schedule: LearningRateSchedule, epochs: int, epoch: int) -> float:
    """What learningRate is multiplied by in `epoch` (from 0) of a job of so many: above 0, at most 1."""
    warmup = schedule.warmup_epochs
    if epoch < warmup:
        return (epoch + 1) / (warmup + 1)
    since = epoch - warmup
    if schedule.mode == "step":
        return schedule.factor ** (since // schedule.every)
    if schedule.mode == "cosine":  # down to the floor at `epochs`, which is the epoch after the last
        height = (1.0 + math.cos(math.pi * since / (epochs - warmup))) / 2
        return schedule.floor + (1.0 - schedule.floor) * height
    return 1.0


def learning_rate(training: TrainingSpec, epoch: int) -> float:
    """What the manifest asks for in the step at the end of `epoch`."""
    return training.learning_rate * rate_factor(training.learning_rate_schedule, training.epochs, epoch)
