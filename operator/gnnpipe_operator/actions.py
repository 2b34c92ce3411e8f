"""What `decide` may ask for, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_api.status import JobStatus


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """`key` makes the Event's name: the same news, told again after a crash, is the same Event."""

    type: str  # Normal | Warning
    reason: str
    message: str
    key: str


@dataclass(frozen=True, slots=True)
class CreateService:
    pass


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    gang: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    stage: int  # PLANNER: the pod that settles auto
    attempt: int


@dataclass(frozen=True, slots=True)
class DeletePod:
    """`grace_seconds` None leaves the pod its own time to checkpoint; 0 forces."""

    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteJob:
    uid: str


Action = CreateService | CreatePodGroup | CreatePod | DeletePod | DeleteJob


@dataclass(frozen=True, slots=True)
class Accepted:
    """The spec that is in force: what a person last wrote, less what may not change under way.

    `spec` is as it was written; `job` has numbers in place of auto as soon as there is a plan.
    """

    spec: dict[str, Any]
    job: GNNPipeJob
    plan: Plan | None  # None: the job says auto, and nobody has planned it yet
    reason: str | None = None  # the planner's, for its numbers


@dataclass(frozen=True, slots=True)
class Decision:
    """Carried out in this order: events, status, actions.

    Events come first because their names make them repeatable; the status comes before the actions because
    it holds the evidence (a failure, the next attempt) from which the actions follow again after a crash.
    """

    status: JobStatus
    events: tuple[EmitEvent, ...] = ()
    actions: tuple[Action, ...] = ()
    wake_at: datetime | None = None
    accepted: Accepted | None = None
