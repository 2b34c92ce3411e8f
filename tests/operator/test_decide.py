"""The story of a job, scene by scene. Two stages, 8 layers; times are seconds after creation."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gnnpipe_api.status import Condition, JobStatus
from gnnpipe_operator.actions import CreatePod, CreatePodGroup, CreateService, DeleteJob, DeletePod
from gnnpipe_operator.decide import decide
from gnnpipe_operator.progress import read_progress
from gnnpipe_operator.waiting import Refusal

FIRST_GANG = (CreatePod(0, 0), CreateService(), CreatePod(1, 0))


def deleted(decision: Any) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, DeletePod)]


def condition(status: JobStatus, kind: str) -> Condition:
    return next(c for c in status.conditions if c.type == kind)


# --- beginning


def test_a_new_job_gets_its_pods_and_service_before_any_status(make_job: Any, seconds: Any) -> None:
    decision = decide(make_job(), [], seconds(0))
    assert decision.actions == FIRST_GANG
    assert decision.status == JobStatus()


def test_a_job_of_one_stage_needs_no_service(make_job: Any, seconds: Any) -> None:
    spec = {"graph": {"source": "synthetic"}, "model": {"kind": "gcn", "layers": 2}}
    assert decide(make_job(spec=spec), [], seconds(0)).actions == (CreatePod(0, 0),)


@pytest.mark.parametrize(
    ("gang", "group"), [("volcano", True), ("scheduler-plugins", True), ("kueue", False)]
)
def test_gang_schedulers_get_their_pod_group(make_job: Any, seconds: Any, gang: str, group: bool) -> None:
    queue = {"queue": "q"} if gang == "kueue" else {}
    job = make_job(run_policy={"scheduling": {"gang": gang, **queue}})
    assert (CreatePodGroup(gang) in decide(job, [], seconds(0)).actions) == group


def test_an_operator_that_died_while_creating_makes_only_what_is_missing(
    make_job: Any, make_pod: Any, seconds: Any
) -> None:
    """The Service before the last pod: once all pods are there, nobody looks for it any more."""
    assert decide(make_job(), [make_pod(0)], seconds(0)).actions == (CreateService(), CreatePod(1, 0))


def test_pods_that_are_all_there_make_the_job_pending_with_its_plan(
    make_job: Any, make_gang: Any, seconds: Any, reasons: Any
) -> None:
    decision = decide(make_job(), make_gang(), seconds(1))
    status = decision.status
    assert (status.phase, status.ready_stages, reasons(decision)) == ("Pending", "0/2", ["Created"])
    assert status.plan is not None
    assert status.plan.layers_per_stage == [4, 4]
    assert status.is_true("Created")
    assert condition(status, "Running").reason == "PodsStarting"


def test_a_job_runs_when_every_stage_runs(make_job: Any, make_pod: Any, make_gang: Any, seconds: Any) -> None:
    half = [make_pod(0, phase="Running"), make_pod(1)]
    assert decide(make_job(), half, seconds(1)).status.phase == "Pending"
    assert decide(make_job(), make_gang(phase="Running"), seconds(1)).status.phase == "Running"


def test_nothing_new_is_nothing_to_write(running_job: Any, make_gang: Any, seconds: Any) -> None:
    job = running_job()
    decision = decide(job, make_gang(phase="Running"), seconds(500))
    assert (decision.status, decision.events, decision.actions) == (job.status, (), ())


def test_wrong_spec_fails_at_once_with_every_problem_and_no_pod(
    make_job: Any, seconds: Any, reasons: Any
) -> None:
    spec = {
        "graph": {"source": "synthetic"},
        "model": {"kind": "gcn", "layers": 2},
        "parallelism": {"stages": 4},
    }
    decision = decide(make_job(spec=spec), [], seconds(0))
    assert (decision.status.phase, reasons(decision), decision.actions) == ("Failed", ["InvalidSpec"], ())
    assert "spec.parallelism.stages" in (decision.status.message or "")


def test_a_template_that_the_api_server_refuses_is_an_invalid_spec(make_job: Any, seconds: Any) -> None:
    refusal = Refusal("Pod is invalid: spec.containers[1].image: Required value", True, seconds(0))
    decision = decide(make_job(), [], seconds(0), refusal=refusal)
    assert (decision.status.phase, decision.actions) == ("Failed", ())
    assert condition(decision.status, "Failed").reason == "InvalidSpec"


def test_a_quota_is_told_and_tried_again(make_job: Any, seconds: Any) -> None:
    refusal = Refusal("exceeded quota: gpus", False, seconds(30))
    waiting = decide(make_job(), [], seconds(0), refusal=refusal)
    assert (waiting.status.phase, waiting.wake_at, waiting.actions) == ("Pending", seconds(30), ())
    assert condition(waiting.status, "Running").reason == "PodRefused"
    assert decide(make_job(), [], seconds(30), refusal=refusal).actions == FIRST_GANG


def test_a_job_of_another_controller_is_left_alone(make_job: Any, seconds: Any) -> None:
    decision = decide(make_job(run_policy={"managedBy": "kueue.x-k8s.io/multikueue"}), [], seconds(0))
    assert (decision.actions, decision.status) == ((), JobStatus())


def test_a_job_being_deleted_is_left_to_its_owner_references(
    running_job: Any, make_pod: Any, seconds: Any
) -> None:
    job = dataclasses.replace(running_job(), deleting=True)
    decision = decide(job, [make_pod(0, exit_code=1)], seconds(5))
    assert (decision.actions, decision.events, decision.status) == ((), (), job.status)


@pytest.mark.parametrize(
    ("checkpoint", "policy", "warned"),
    [
        ({}, {}, True),
        ({}, {"backoffLimit": 0}, False),
        ({"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}}, {}, False),
    ],
    ids=["restarts begin anew", "never restarted", "kept"],
)
def test_a_job_whose_restarts_would_begin_anew_is_warned_once(
    make_job: Any, make_gang: Any, seconds: Any, reasons: Any, checkpoint: Any, policy: Any, warned: bool
) -> None:
    spec = {**make_job().spec, "checkpoint": checkpoint, "runPolicy": policy}
    told = decide(make_job(spec=spec), make_gang(), seconds(1))
    assert ("NoCheckpointVolume" in reasons(told)) == warned
    again = decide(make_job(spec=spec, status=JobStatus(attempt=1)), make_gang(attempt=1), seconds(1))
    assert reasons(again) == ["Created"]


# --- waiting to run


def test_an_image_that_does_not_pull_is_told_once_with_its_first_words(
    make_job: Any, make_pod: Any, seconds: Any, reasons: Any
) -> None:
    def pulling(words: str) -> list[Any]:
        return [make_pod(0), make_pod(1, waiting="ImagePullBackOff", message=words)]

    first = decide(make_job(), pulling("manifest unknown"), seconds(1))
    assert "ImagePullBackOff" in reasons(first)
    assert "manifest unknown" in (first.status.message or "")
    again = decide(make_job(status=first.status), pulling("Back-off pulling image"), seconds(2))
    assert (again.status, again.events) == (first.status, ())


def test_an_attempt_that_does_not_run_in_time_fails_with_the_cause(
    make_job: Any, make_pod: Any, seconds: Any
) -> None:
    policy = {"preRunningDeadlineSeconds": 60}
    pods = [make_pod(0, phase="Running"), make_pod(1, unschedulable="0/3 nodes are available")]
    begun = decide(make_job(run_policy=policy), pods, seconds(0))
    assert begun.wake_at == seconds(60)
    job = make_job(run_policy=policy, status=begun.status)
    assert decide(job, pods, seconds(59)).status.phase == "Pending"
    late = decide(job, pods, seconds(60))
    assert condition(late.status, "Failed").reason == "PreRunningDeadlineExceeded"
    assert "0/3 nodes are available" in (late.status.message or "")
    assert deleted(late) == ["cora-s0-a0", "cora-s1-a0"]


# --- deadlines


def test_an_active_deadline_stops_the_job(running_job: Any, make_gang: Any, seconds: Any) -> None:
    job = running_job(run_policy={"activeDeadlineSeconds": 60})
    pods = make_gang(phase="Running")
    assert decide(job, pods, seconds(59)).wake_at == seconds(60)
    late = decide(job, pods, seconds(60))
    assert condition(late.status, "Failed").reason == "DeadlineExceeded"
    assert deleted(late) == ["cora-s0-a0", "cora-s1-a0"]


def test_a_job_that_is_done_at_its_deadline_is_done(running_job: Any, make_gang: Any, seconds: Any) -> None:
    job = running_job(run_policy={"activeDeadlineSeconds": 60})
    assert decide(job, make_gang(phase="Succeeded", exit_code=0), seconds(99)).status.phase == "Succeeded"


# --- the end


def test_a_job_succeeds_when_every_stage_did_and_keeps_the_result(
    running_job: Any, make_pod: Any, seconds: Any, reasons: Any
) -> None:
    result = {
        **{"epochs": 20, "loss": 0.50004, "accuracy": {"test": 17 / 21}, "seconds": {"epochMedian": 0.25}},
        **{"bubble": {"measured": 0.12, "ideal": 0.11}, "bytesPerEpoch": {"pipeline": 80, "total": 80}},
    }
    pods = [
        make_pod(0, phase="Succeeded", exit_code=0, message=json.dumps(result)),
        make_pod(1, phase="Succeeded", exit_code=0),
    ]
    decision = decide(running_job(), pods, seconds(80))
    status = decision.status
    assert (status.phase, reasons(decision), decision.actions) == ("Succeeded", ["Succeeded"], ())
    assert (status.epoch, status.loss, status.seconds_per_epoch) == (20, 0.5, 0.25)
    assert (status.bubble, status.bubble_ideal) == (0.12, 0.11)
    assert status.bytes_per_epoch == {"pipeline": 80, "total": 80}
    assert status.accuracy is not None
    assert status.accuracy.test == 0.8095  # four digits, for the columns of kubectl get
    assert [c.type for c in status.conditions if c.status == "True"] == ["Created", "Succeeded"]


def test_one_stage_that_is_done_early_is_neither_success_nor_failure(
    running_job: Any, make_pod: Any, seconds: Any
) -> None:
    job = running_job()
    pods = [make_pod(0, phase="Succeeded", exit_code=0), make_pod(1, phase="Running")]
    assert decide(job, pods, seconds(80)).status == job.status


def test_a_finished_job_is_deleted_at_its_time_and_not_before(
    running_job: Any, make_job: Any, make_gang: Any, seconds: Any
) -> None:
    done = make_gang(phase="Succeeded", exit_code=0)
    policy = {"ttlSecondsAfterFinished": 30}
    job = make_job(status=decide(running_job(), done, seconds(100)).status, run_policy=policy)
    assert decide(job, done, seconds(129)).wake_at == seconds(130)
    assert decide(job, done, seconds(129)).actions == ()
    assert decide(job, done, seconds(130)).actions == (DeleteJob("job-uid"),)


def test_a_finished_job_is_never_judged_again(
    running_job: Any, make_job: Any, make_gang: Any, seconds: Any
) -> None:
    status = decide(running_job(), make_gang(phase="Failed", exit_code=2), seconds(9)).status
    for pods in ([], make_gang(phase="Succeeded", exit_code=0), make_gang(phase="Failed", exit_code=1)):
        decision = decide(make_job(status=status), pods, seconds(999))
        assert (decision.status, decision.actions, decision.events) == (status, (), ())


# --- progress


def test_progress_is_written_at_most_every_ten_seconds(
    running_job: Any, make_job: Any, make_gang: Any, seconds: Any
) -> None:
    pods = make_gang(phase="Running")

    def epoch_after(job: Any, epoch: int, moment: float) -> Any:
        progress = read_progress({"epoch": epoch, "epochs": 20, "loss": float("nan")})
        return decide(job, pods, seconds(moment), progress=progress).status

    first = epoch_after(running_job(), 3, 10)
    assert (first.epoch, first.progress, first.loss) == (3, "3/20", None)
    assert epoch_after(make_job(status=first), 4, 19).epoch == 3
    assert epoch_after(make_job(status=first), 4, 20).epoch == 4


def test_figures_that_the_api_server_would_refuse_are_left_out() -> None:
    """What runs in a pod is its user's: it may say anything, and each kind that it says would be a series."""
    sent = {"pipeline": 80.0, "graph": 1e300, "gradient": "much", "total": -1, "mine": 7}
    progress = read_progress({"epoch": 1e300, "epochs": 20, "bytesPerEpoch": sent})
    assert (progress.epoch, progress.epochs) == (None, 20)
    assert progress.bytes_per_epoch == {"pipeline": 80}
