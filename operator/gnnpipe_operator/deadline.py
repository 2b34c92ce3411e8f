"""How long a job may be active, and how long an attempt may take to run."""

from __future__ import annotations

from datetime import datetime, timedelta

from gnnpipe_api.status import JobStatus


def active_deadline(status: JobStatus, limit_seconds: int | None) -> datetime | None:
    """When activeDeadlineSeconds runs out if the job stays active; None: never, or the clock stands still."""
    if limit_seconds is None or status.start_time is None or status.suspend_time is not None:
        return None
    return status.start_time + timedelta(seconds=limit_seconds + status.suspended_seconds)


def pre_running_deadline(status: JobStatus, limit_seconds: int | None) -> datetime | None:
    """When all pods of the attempt must run; None: no limit, or they do, or the attempt has not begun."""
    if limit_seconds is None or status.attempt_start_time is None or status.is_true("Running"):
        return None
    return status.attempt_start_time + timedelta(seconds=limit_seconds)
