"""Turns the one thing that is true of a job now into its six conditions and its phase."""

from __future__ import annotations

from datetime import datetime
from typing import get_args

from gnnpipe_api.status import Condition, ConditionType, JobStatus, Phase


def tell(
    status: JobStatus,
    phase: Phase,
    reason: str,
    message: str,
    *,
    created: bool,
    generation: int,
    now: datetime,
) -> JobStatus:
    """All six conditions are said anew each time, so that none can be left over from another day."""
    before = {condition.type: condition for condition in status.conditions}
    conditions = []
    for kind in get_args(ConditionType):
        value = "True" if kind == phase or (kind == "Created" and created) else "False"
        why, words = (reason, message) if kind == speaker(phase) else (phase, "")
        old = before.get(kind)
        changed = now if old is None or old.status != value else old.last_transition_time
        conditions.append(
            Condition(
                type=kind,
                status=value,  # type: ignore[arg-type]  # the checker does not narrow a choice of literals
                reason=why,
                message=words or None,
                last_transition_time=changed,
                observed_generation=generation,
            )
        )
    return status.model_copy(
        update={
            "phase": phase,
            "message": message or None,
            "conditions": conditions,
            "observed_generation": generation,
        }
    )


def speaker(phase: Phase) -> ConditionType:
    """The condition that carries reason and message: a Pending job says why it is not Running."""
    return "Running" if phase == "Pending" else phase


def spoken_reason(status: JobStatus) -> str:
    kind = speaker(status.phase or "Pending")
    return next((condition.reason for condition in status.conditions if condition.type == kind), "")
