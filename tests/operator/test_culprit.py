"""Stages that lost another one: the attempt is judged by what became of the others, never by its victims."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.status import JobStatus
from gnnpipe_operator.decide import decide

VICTIM = {"phase": "Failed", "exit_code": ExitCode.LOST_PEER, "message": "rank 0: lost rank 1"}


@pytest.mark.parametrize(
    ("other", "failures", "reason"),
    [
        ({"phase": "Failed", "exit_code": 1, "message": "KeyError: x"}, 1, "StageFailed"),
        ({"phase": "Failed", "exit_code": 137, "reason": "OOMKilled"}, 1, "OutOfMemory"),
        ({"phase": "Failed", "exit_code": 75}, 0, "Preempted"),
        ({"phase": "Failed", "reason": "Evicted"}, 0, "Evicted"),
        ({"phase": "Running", "disrupted": True}, 0, "Preempted"),
        ({"phase": "Running", "node_lost": True}, 0, "NodeLost"),
        (VICTIM, 1, "LostPeer"),
    ],
)
def test_the_other_pods_say_whether_it_counts(
    running_job: Any, make_pod: Any, seconds: Any, other: dict[str, Any], failures: int, reason: str
) -> None:
    pods = [make_pod(0, **VICTIM), make_pod(1, **other)]
    status = decide(running_job(), pods, seconds(9)).status
    assert (status.phase, status.attempt, status.failures) == ("Restarting", 1, failures)
    assert spoken(status) == reason


def test_a_pod_that_was_deleted_explains_its_victims(running_job: Any, make_pod: Any, seconds: Any) -> None:
    leaving = make_pod(1, phase="Running", deletion_deadline=seconds(30))
    for others in ([leaving], []):
        status = decide(running_job(), [make_pod(0, **VICTIM), *others], seconds(9)).status
        assert (status.attempt, status.failures) == (1, 0)


def test_a_silent_pod_is_given_a_minute_to_show_what_became_of_it(
    running_job: Any, make_job: Any, make_pod: Any, seconds: Any
) -> None:
    pods = [make_pod(0, **VICTIM), make_pod(1, phase="Running")]
    waiting = decide(running_job(), pods, seconds(9))
    assert (waiting.status.phase, waiting.status.attempt, waiting.actions) == ("Restarting", 0, ())
    assert "lost rank 1" in (waiting.status.message or "")
    assert waiting.wake_at == seconds(69)
    job = make_job(status=waiting.status)
    assert decide(job, pods, seconds(68)).status == waiting.status
    # A node that was lost is known by then: who is still silent hangs, and that is the job's own doing.
    late = decide(job, pods, seconds(69)).status
    assert (late.attempt, late.failures, spoken(late), late.lost_peer_time) == (1, 1, "StageSilent", None)
    assert "stage 1 (pod cora-s1-a0) neither answers" in (late.last_failure or "")


def test_a_clock_that_was_set_back_does_not_prolong_the_wait(
    running_job: Any, make_job: Any, make_pod: Any, seconds: Any
) -> None:
    pods = [make_pod(0, **VICTIM), make_pod(1, phase="Running")]
    job = make_job(status=decide(running_job(), pods, seconds(9)).status)
    assert decide(job, pods, seconds(-3600)).status.attempt == 1


def test_a_job_that_is_suspended_meanwhile_waits_no_longer(
    running_job: Any, make_job: Any, make_pod: Any, seconds: Any
) -> None:
    pods = [make_pod(0, **VICTIM), make_pod(1, phase="Running")]
    waiting = decide(running_job(), pods, seconds(9)).status
    job = dataclasses.replace(make_job(status=waiting, run_policy={"suspend": True}), generation=2)
    status = decide(job, pods, seconds(20)).status
    assert (status.phase, status.lost_peer_time) == ("Suspended", None)


def spoken(status: JobStatus) -> str:
    return next(c.reason for c in status.conditions if c.type == "Restarting")
