"""What follows when a gang fails: give up, or a whole new attempt, and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from gnnpipe_api.job import CheckpointSpec
from gnnpipe_api.status import JobStatus
from gnnpipe_operator.failure import Failure, Kind

FIRST_DELAY_SECONDS = 10
LONGEST_DELAY_SECONDS = 300
DISRUPTION_DELAY_SECONDS = 5  # the scheduler waits for room anyway; this only keeps a hot loop away


@dataclass(frozen=True, slots=True)
class Verdict:
    """Either `restart_at` is set, or the job fails for good with `reason` and `message`."""

    failures: int  # counted so far, this one included
    restart_at: datetime | None
    reason: str
    message: str


def failures_before(status: JobStatus, saved_epoch: int | None) -> int:
    """Counted failures that led nowhere. New epochs in the checkpoint since the last one begin a new count:
    a job that trains for weeks may fail now and then, one that always fails at the same epoch may not."""
    if saved_epoch is not None and saved_epoch > (status.failure_epoch or 0):
        return 0
    return status.failures


def last_saved_epoch(checkpoint: CheckpointSpec, epoch: int | None) -> int | None:
    """Epochs that the last checkpoint holds when `epoch` are done; None: nothing outlives the pods."""
    if checkpoint.volume is None or epoch is None:
        return None
    return epoch - epoch % checkpoint.every_epochs


def after_failure(failure: Failure, failures: int, backoff_limit: int, now: datetime) -> Verdict:
    if failure.kind is Kind.INVALID:
        return Verdict(failures, None, failure.reason, failure.message)
    if failure.kind is Kind.DISRUPTION:
        restart_at = now + timedelta(seconds=DISRUPTION_DELAY_SECONDS)
        return Verdict(failures, restart_at, failure.reason, failure.message)
    failures += 1
    if failures > backoff_limit:
        message = (
            f"{failure.message}; spec.runPolicy.backoffLimit is {backoff_limit} and all restarts are used up"
        )
        return Verdict(failures, None, "BackoffLimitExceeded", message)
    restart_at = now + timedelta(seconds=delay_seconds(failures))
    return Verdict(failures, restart_at, failure.reason, failure.message)


def delay_seconds(failures: int) -> int:
    """10 s after the first counted failure, doubling, at most 5 minutes."""
    doublings = min(failures - 1, 10)  # beyond ten the cap holds anyway, and 2 ** n stays small
    return int(min(FIRST_DELAY_SECONDS * 2**doublings, LONGEST_DELAY_SECONDS))
