"""The status of a job: written by the operator only, read by people through `kubectl get gpj`.

It is also all that the operator remembers: together with the pods it must be enough to go on after a crash.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from gnnpipe_api.part import Object, Part

Phase = Literal["Pending", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]
ConditionType = Literal["Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]


class StatusPart(Part):
    """Read leniently: an older or newer operator may have written it."""

    model_config = ConfigDict(extra="ignore", strict=False)


class Condition(StatusPart):
    """A metav1.Condition. All six are always there, so that an old one can never stay true unnoticed."""

    type: ConditionType
    """Created (all pods of the attempt exist), Running, Restarting, Suspended, Succeeded or Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: str
    """One word why, for programs."""
    message: str | None = None
    """One sentence why, for people; left out where there is nothing to add."""
    last_transition_time: datetime
    """When status last changed."""
    observed_generation: int
    """Generation of the manifest that this condition speaks of."""


class PlanStatus(StatusPart):
    """The numbers the job runs with."""

    stages: int
    """Pipeline stages, one pod each."""
    ways: int
    """Ranks per stage."""
    chunks: int
    """Parts the graph is cut into."""
    layers_per_stage: list[int]
    """Layers on each stage."""
    reason: str | None = None
    """Why these numbers: the planner's sentence, where the manifest says auto."""


class Accuracy(StatusPart):
    """Shares of correctly classified vertices at the last evaluation."""

    train: float | None = None
    """On the training vertices."""
    val: float | None = None
    """On the validation vertices."""
    test: float | None = None
    """On the test vertices."""


class JobStatus(StatusPart):
    """What the operator knows about a job."""

    phase: Phase | None = None
    """Where the job stands, in one word; follows from the conditions."""
    conditions: list[Condition] = Field(default_factory=list)
    """Where the job stands, for programs."""
    observed_generation: int | None = None
    """Generation of the manifest that this status speaks of."""
    message: str | None = None
    """Where the job stands, in one sentence: the first bad pod's own words where there is one."""
    plan: PlanStatus | None = None
    """The numbers the job runs with."""
    ready_stages: str | None = None
    """Stages whose pods run out of all, such as 3/4."""
    attempt: int = 0
    """Number of the current attempt, counted from 0."""
    restarts: int = 0
    """How often the job was restarted for whatever reason."""
    failures: int = 0
    """Failures that count against backoffLimit: those since the checkpoint last grew."""
    failure_epoch: int | None = None
    """Epochs in the checkpoint at the last failure that counted; once there are more, failures start at 0."""
    lost_peer_time: datetime | None = None
    """Since when stages have lost another one of which nobody knows yet what became of it."""
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
    bubble_ideal: float | None = None
    """The least share that so few chunks in so many stages can have, 0 to 1."""
    bytes_per_epoch: dict[str, int] | None = None
    """Bytes handed to the network in the last epoch, by kind: pipeline, graph, gradient, and total."""
    progress_time: datetime | None = None
    """When the figures above were last read from the pods."""
    start_time: datetime | None = None
    """When the job was first started."""
    attempt_start_time: datetime | None = None
    """When the pods of the current attempt had been created."""
    restart_time: datetime | None = None
    """When the next attempt begins, while the job waits between two."""
    suspend_time: datetime | None = None
    """Since when the job is suspended."""
    suspended_seconds: float = 0.0
    """Seconds spent suspended before now; not counted against activeDeadlineSeconds."""
    completion_time: datetime | None = None
    """When the job was finished."""
    last_failure: str | None = None
    """Why the last attempt failed: the first bad pod's real reason."""
    accepted_spec: Object | None = None
    """The spec in force. An edit that may not take effect while the job runs waits in spec."""

    def is_true(self, kind: ConditionType) -> bool:
        return any(c.type == kind and c.status == "True" for c in self.conditions)

    @property
    def finished(self) -> bool:
        return self.is_true("Succeeded") or self.is_true("Failed")

    def as_dict(self) -> dict[str, Any]:
        """As it goes to the API server."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
