"""The status of a job: written by the operator only, read by people through `kubectl get gpj`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gnnpipe_api.part import Part

Phase = Literal["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


class Condition(Part):
    """A metav1.Condition."""

    type: str
    """Created, Running, Restarting, Suspended, Succeeded or Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: str
    """One word why, for programs."""
    message: str = ""
    """One sentence why, for people."""
    last_transition_time: str
    """When status last changed."""
    observed_generation: int
    """Generation of the manifest that this condition speaks of."""


class PlanStatus(Part):
    """The numbers the job runs with."""

    stages: int
    """Pipeline stages, one pod each."""
    ways: int
    """Ranks per stage."""
    chunks: int
    """Parts the graph is cut into."""
    layers_per_stage: list[int]
    """Layers on each stage."""


class Accuracy(Part):
    """Shares of correctly classified vertices at the last evaluation."""

    train: float | None = None
    """On the training vertices."""
    val: float | None = None
    """On the validation vertices."""
    test: float | None = None
    """On the test vertices."""


class StageStatus(Part):
    """One stage's pod."""

    stage: int
    """Which stage, counted from 0."""
    pod: str
    """Name of its pod."""
    phase: str
    """Phase of its pod."""
    ready: bool
    """Whether its ranks have met and train."""


class JobStatus(Part):
    """What the operator knows about a job."""

    phase: Phase | None = None
    """Where the job stands, in one word; follows from the conditions."""
    conditions: list[Condition] = Field(default_factory=list)
    """Where the job stands, for programs."""
    observed_generation: int | None = None
    """Generation of the manifest that this status speaks of."""
    message: str | None = None
    """Where the job stands, in one sentence."""
    plan: PlanStatus | None = None
    """The numbers the job runs with."""
    stages: list[StageStatus] = Field(default_factory=list)
    """The pods of the current attempt, one per stage."""
    ready_stages: str | None = None
    """Stages that are ready out of all, such as 3/4."""
    attempt: int | None = None
    """Number of the current attempt, counted from 0."""
    restarts: int | None = None
    """How often the job was restarted for whatever reason."""
    failures: int | None = None
    """Restarts that count against backoffLimit."""
    epoch: int | None = None
    """Epochs done."""
    epochs: int | None = None
    """Epochs asked for."""
    progress: str | None = None
    """Epochs done out of those asked for, such as 40/200."""
    loss: float | None = None
    """Training loss of the last epoch."""
    accuracy: Accuracy | None = None
    """Accuracies at the last evaluation."""
    seconds_per_epoch: float | None = None
    """Median seconds per epoch of late."""
    eta_seconds: float | None = None
    """Seconds until the last epoch at this speed."""
    bubble: float | None = None
    """Share of time that the ranks wait, 0 to 1."""
    start_time: str | None = None
    """When the job was first started."""
    attempt_start_time: str | None = None
    """When the current attempt was started."""
    restart_time: str | None = None
    """When the next attempt begins, while the job waits between two."""
    suspend_time: str | None = None
    """Since when the job is suspended."""
    suspended_seconds: float | None = None
    """Seconds spent suspended before now; not counted against activeDeadlineSeconds."""
    completion_time: str | None = None
    """When the job was finished."""
    last_failure: str | None = None
    """Why the last attempt failed: the first bad pod's real reason."""
