"""Suspending stops the clock and the gang; resuming starts both, from the last checkpoint."""

from __future__ import annotations

from datetime import datetime

from gnnpipe_api.status import JobStatus


def pause(status: JobStatus, now: datetime, gang_exists: bool) -> JobStatus:
    """The attempt ends here: what still runs of it belongs to the past, and resuming makes new pods."""
    if status.suspend_time is not None:
        return status
    return status.model_copy(
        update={
            "suspend_time": now,
            "attempt_start_time": None,
            "restart_time": None,
            "lost_peer_time": None,
            "attempt": status.attempt + 1 if gang_exists else status.attempt,
        }
    )


def resume(status: JobStatus, now: datetime) -> JobStatus:
    """Starts the active clock, on the first day and after each suspension. A clock set back adds nothing."""
    if status.start_time is None:
        return status.model_copy(update={"start_time": now, "suspend_time": None})
    if status.suspend_time is None:
        return status
    slept = max(0.0, (now - status.suspend_time).total_seconds())
    return status.model_copy(
        update={"suspend_time": None, "suspended_seconds": status.suspended_seconds + slept}
    )
