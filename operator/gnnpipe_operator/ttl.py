"""When a finished job is deleted."""

from __future__ import annotations

from datetime import datetime, timedelta


def expiry(completed: datetime | None, ttl_seconds: int | None) -> datetime | None:
    """None keeps the job. The time is absolute, so that a restart of the operator never makes it late."""
    if completed is None or ttl_seconds is None:
        return None
    return completed + timedelta(seconds=ttl_seconds)
