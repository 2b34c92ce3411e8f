"""A gang that fails: what is stopped, what is counted, when the next attempt begins."""

from __future__ import annotations

from typing import Any

import pytest

from gnnpipe_api.status import Condition, JobStatus
from gnnpipe_operator.actions import CreatePod, CreateService, DeletePod
from gnnpipe_operator.decide import decide


def deleted(decision: Any) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, DeletePod)]


def condition(status: JobStatus, kind: str) -> Condition:
    return next(c for c in status.conditions if c.type == kind)


def test_one_dead_pod_stops_the_whole_gang_and_the_next_attempt_waits(
    running_job: Any, make_pod: Any, seconds: Any, reasons: Any
) -> None:
    pods = [make_pod(0, phase="Running"), make_pod(1, phase="Failed", exit_code=1, message="KeyError: x")]
    decision = decide(running_job(), pods, seconds(100))
    status = decision.status
    assert (status.phase, status.attempt, status.restarts, status.failures) == ("Restarting", 1, 1, 1)
    assert (status.restart_time, decision.wake_at) == (seconds(110), seconds(110))
    assert deleted(decision) == ["cora-s0-a0", "cora-s1-a0"]
    assert reasons(decision) == ["Restarting"]
    assert "exit code 1: KeyError: x" in (status.last_failure or "")
    assert not status.is_true("Running")
    assert not status.is_true("Created")


def test_the_next_attempt_waits_for_back_off_and_for_the_old_pods_to_end(
    running_job: Any, make_job: Any, make_pod: Any, make_gang: Any, seconds: Any
) -> None:
    failed = [make_pod(0, phase="Running"), make_pod(1, phase="Failed", exit_code=1)]
    job = make_job(status=decide(running_job(), failed, seconds(100)).status)
    leaving = [make_pod(0, phase="Running", deletion_deadline=seconds(105))]
    assert decide(job, leaving, seconds(120)).actions == ()
    assert decide(job, [], seconds(109)).wake_at == seconds(110)
    assert decide(job, [], seconds(109)).actions == ()
    assert decide(job, [], seconds(110)).actions == (CreatePod(0, 1), CreateService(), CreatePod(1, 1))
    starting = decide(job, make_gang(attempt=1), seconds(111)).status
    assert (starting.phase, starting.restart_time) == ("Restarting", None)
    running = decide(job, make_gang(attempt=1, phase="Running"), seconds(112)).status
    assert (running.phase, running.is_true("Restarting")) == ("Running", False)


def test_a_pod_that_has_ended_keeps_nobody_waiting_but_one_that_is_only_called_failed_does(
    running_job: Any, make_job: Any, make_pod: Any, seconds: Any
) -> None:
    failed = [make_pod(0, phase="Running"), make_pod(1, phase="Failed", exit_code=1)]
    job = make_job(status=decide(running_job(), failed, seconds(100)).status)
    ended = make_pod(0, phase="Failed", exit_code=75, at_rest=True, deletion_deadline=seconds(105))
    assert decide(job, [ended], seconds(110)).actions[0] == CreatePod(0, 1)
    evicted = make_pod(0, phase="Failed", reason="Evicted", deletion_deadline=seconds(105))
    assert decide(job, [evicted], seconds(110)).actions == ()


@pytest.mark.parametrize(
    ("end", "failures"),
    [
        ({"exit_code": 75}, 0),
        ({"phase": "Failed", "reason": "Evicted"}, 0),
        ({"phase": "Failed", "reason": "NodeLost"}, 0),
        ({"exit_code": 137, "disrupted": True}, 0),
        ({"exit_code": 137, "reason": "OOMKilled"}, 1),
    ],
)
def test_the_clusters_doings_restart_the_job_without_being_counted(
    running_job: Any, make_pod: Any, seconds: Any, end: dict[str, Any], failures: int
) -> None:
    pods = [make_pod(0, phase="Running"), make_pod(1, **end)]
    status = decide(running_job(run_policy={"backoffLimit": 1}), pods, seconds(9)).status
    assert (status.phase, status.restarts, status.failures) == ("Restarting", 1, failures)


def test_wrong_data_is_final(running_job: Any, make_pod: Any, seconds: Any, reasons: Any) -> None:
    pods = [
        make_pod(0, phase="Running"),
        make_pod(1, phase="Failed", exit_code=2, message="no masks in x.npz"),
    ]
    decision = decide(running_job(), pods, seconds(9))
    assert (decision.status.phase, reasons(decision)) == ("Failed", ["InvalidData"])
    assert "no masks in x.npz" in (decision.status.message or "")
    assert deleted(decision) == ["cora-s0-a0"]


def test_the_last_allowed_failure_is_the_end(running_job: Any, make_gang: Any, seconds: Any) -> None:
    job = running_job(run_policy={"backoffLimit": 0})
    status = decide(job, make_gang(phase="Failed", exit_code=1), seconds(9)).status
    assert condition(status, "Failed").reason == "BackoffLimitExceeded"
    assert status.completion_time == seconds(9)


@pytest.mark.parametrize(
    ("epochs", "ends"),
    [
        ([25, 25, 25], "Failed"),
        ([25, 28, 29], "Failed"),
        ([25, 30, 47], "Restarting"),
        ([9, 9, 10], "Restarting"),
    ],
    ids=[
        "always at the same epoch",
        "before the next checkpoint",
        "further each time",
        "at last a checkpoint",
    ],
)
def test_new_epochs_in_the_checkpoint_begin_a_new_count_of_failures(
    running_job: Any, make_job: Any, make_gang: Any, seconds: Any, epochs: list[int], ends: str
) -> None:
    policy = {"backoffLimit": 2}
    status = running_job(run_policy=policy).status
    for attempt, epoch in enumerate(epochs):
        job = make_job(status=status.model_copy(update={"epoch": epoch}), run_policy=policy)
        status = decide(job, make_gang(attempt, phase="Failed", exit_code=1), seconds(9)).status
    assert status.phase == ends


def test_without_a_volume_no_progress_outlives_a_failure(make_job: Any, make_gang: Any, seconds: Any) -> None:
    spec = {
        "graph": {"source": "synthetic"},
        "model": {"kind": "gcn", "layers": 8},
        "parallelism": {"stages": 2},
    }
    status = JobStatus(failures=3, failure_epoch=10, epoch=90)
    decision = decide(make_job(spec=spec, status=status), make_gang(phase="Failed", exit_code=1), seconds(9))
    assert condition(decision.status, "Failed").reason == "BackoffLimitExceeded"


def test_a_pod_that_somebody_deleted_restarts_the_gang_without_being_counted(
    running_job: Any, make_pod: Any, seconds: Any
) -> None:
    status = decide(running_job(), [make_pod(0, phase="Running")], seconds(9)).status
    assert (status.phase, status.attempt, status.failures) == ("Restarting", 1, 0)
    assert "stage 1 (pod cora-s1-a0) is gone" in (status.last_failure or "")


def test_a_pod_of_an_old_attempt_is_stopped_and_the_current_gang_left_alone(
    running_job: Any, make_job: Any, make_pod: Any, make_gang: Any, seconds: Any
) -> None:
    running = running_job().status.model_copy(update={"attempt": 3})
    pods = [*make_gang(attempt=3, phase="Running"), make_pod(0, attempt=2, phase="Failed", exit_code=1)]
    decision = decide(make_job(status=running), pods, seconds(9))
    assert deleted(decision) == ["cora-s0-a2"]
    assert decision.status == running


def test_a_wiped_status_is_made_up_from_the_pods(make_job: Any, make_gang: Any, seconds: Any) -> None:
    decision = decide(make_job(status=JobStatus()), make_gang(attempt=4, phase="Running"), seconds(9))
    assert (decision.status.phase, decision.status.attempt, decision.actions) == ("Running", 4, ())
