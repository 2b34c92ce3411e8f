"""Each policy alone: back-off, deadlines, time to live, suspension, clean-up."""

from __future__ import annotations

from typing import Any

import pytest

from gnnpipe_api.status import JobStatus
from gnnpipe_operator import cleanup, deadline, ttl
from gnnpipe_operator.failure import Failure, Kind
from gnnpipe_operator.restart import after_failure, delay_seconds
from gnnpipe_operator.suspend import pause, resume


@pytest.mark.parametrize(("failures", "delay"), [(1, 10), (2, 20), (3, 40), (5, 160), (6, 300), (1000, 300)])
def test_back_off_doubles_up_to_five_minutes(failures: int, delay: int) -> None:
    assert delay_seconds(failures) == delay


@pytest.mark.parametrize(
    ("kind", "failures_before", "limit", "failures", "restarts", "reason"),
    [
        (Kind.ERROR, 0, 3, 1, True, "Boom"),
        (Kind.ERROR, 2, 3, 3, True, "Boom"),
        (Kind.ERROR, 3, 3, 4, False, "BackoffLimitExceeded"),
        (Kind.ERROR, 0, 0, 1, False, "BackoffLimitExceeded"),
        (Kind.DISRUPTION, 3, 3, 3, True, "Boom"),
        (Kind.INVALID, 0, 3, 0, False, "Boom"),
    ],
)
def test_only_the_jobs_own_errors_use_up_the_backoff_limit(
    seconds: Any, kind: Kind, failures_before: int, limit: int, failures: int, restarts: bool, reason: str
) -> None:
    verdict = after_failure(Failure(kind, "Boom", "it broke"), failures_before, limit, seconds(0))
    assert (verdict.failures, verdict.restart_at is not None, verdict.reason) == (failures, restarts, reason)


def test_the_active_clock_leaves_out_suspended_time(seconds: Any) -> None:
    status = resume(JobStatus(), seconds(0))
    status = resume(pause(status, seconds(10), gang_exists=True), seconds(110))
    assert deadline.active_deadline(status, 60) == seconds(160)


def test_the_active_clock_stands_still_while_suspended(seconds: Any) -> None:
    status = pause(resume(JobStatus(), seconds(0)), seconds(10), gang_exists=True)
    assert deadline.active_deadline(status, 60) is None


def test_a_clock_set_back_while_suspended_adds_no_time(seconds: Any) -> None:
    status = resume(pause(resume(JobStatus(), seconds(0)), seconds(100), gang_exists=True), seconds(50))
    assert status.suspended_seconds == 0


def test_suspending_twice_is_suspending_once(seconds: Any) -> None:
    once = pause(JobStatus(), seconds(0), gang_exists=True)
    assert pause(once, seconds(5), gang_exists=True) == once
    assert once.attempt == 1


@pytest.mark.parametrize(
    ("ttl_seconds", "expires"), [(None, None), (0, 100), (60, 160)], ids=["kept", "at once", "a minute"]
)
def test_time_to_live_counts_from_completion(
    seconds: Any, ttl_seconds: int | None, expires: int | None
) -> None:
    assert ttl.expiry(seconds(100), ttl_seconds) == (None if expires is None else seconds(expires))


@pytest.mark.parametrize(
    ("policy", "left"),
    [("Running", ["cora-s1-a0"]), ("All", ["cora-s0-a0", "cora-s1-a0"]), ("None", ["cora-s1-a0"])],
)
def test_a_trainer_that_outlives_its_gang_goes_under_every_policy(
    make_pod: Any, policy: str, left: list[str]
) -> None:
    pods = [make_pod(0, phase="Failed", exit_code=1), make_pod(1, phase="Running")]
    assert [pod.name for pod in cleanup.leftovers(pods, policy)] == left


def test_a_sidecar_that_runs_on_is_cleaned_unless_nothing_is(make_pod: Any) -> None:
    pods = [make_pod(0, phase="Running", exit_code=0)]
    assert [len(cleanup.leftovers(pods, policy)) for policy in ("Running", "All", "None")] == [1, 1, 0]


def test_a_pod_is_deleted_once_and_forced_off_a_lost_node_a_minute_late(make_pod: Any, seconds: Any) -> None:
    leaving = make_pod(0, deletion_deadline=seconds(30))
    assert [d.grace_seconds for d in cleanup.stop([make_pod(0)], seconds(0), 5)] == [5]
    assert cleanup.stop([leaving], seconds(89), 5) == []
    assert [d.grace_seconds for d in cleanup.stop([leaving], seconds(90), 5)] == [0]
    assert cleanup.next_force([leaving]) == seconds(90)
