"""Names and labels by which a job's objects are found again: all that the operator remembers of them."""

from __future__ import annotations

from collections.abc import Mapping

from gnnpipe_api.contract import GROUP

LABEL_JOB = f"{GROUP}/job"
LABEL_STAGE = f"{GROUP}/stage"
LABEL_ATTEMPT = f"{GROUP}/attempt"
ANNOTATION_GENERATION = f"{GROUP}/generation"  # of the job whose spec the pod was made from
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "gnnpipe-operator"

PLANNER = -1  # in place of a stage: the pod that settles auto, before any stage has one
_PLANNER_LABEL = "plan"


def pod_name(job: str, stage: int, attempt: int) -> str:
    """The attempt is in the name, so that a new gang never collides with pods still shutting down."""
    return f"{job}-plan-a{attempt}" if stage == PLANNER else f"{job}-s{stage}-a{attempt}"


def service_name(job: str) -> str:
    return job


def pod_labels(job: str, stage: int, attempt: int) -> dict[str, str]:
    return {
        LABEL_JOB: job,
        LABEL_STAGE: _PLANNER_LABEL if stage == PLANNER else str(stage),
        LABEL_ATTEMPT: str(attempt),
        LABEL_MANAGED_BY: MANAGER,
    }


def stage_of(labels: Mapping[str, str]) -> int | None:
    """The stage that a pod's labels tell, or PLANNER; None where they tell neither."""
    told = str(labels.get(LABEL_STAGE, ""))
    if told == _PLANNER_LABEL:
        return PLANNER
    return int(told) if told.isdigit() else None
