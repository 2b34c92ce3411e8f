"""A job that says auto: the pod that plans, scene by scene. 8 layers; times are seconds after creation."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gnnpipe_api.load import parse_job
from gnnpipe_api.status import Condition, JobStatus
from gnnpipe_operator.actions import CreatePod, CreateService, DeletePod
from gnnpipe_operator.decide import decide
from gnnpipe_operator.edits import manifest_of
from gnnpipe_operator.labels import PLANNER
from gnnpipe_operator.planning import read_plan
from gnnpipe_operator.waiting import Refusal

AUTO: dict[str, Any] = {
    "graph": {"source": "synthetic"},
    "model": {"kind": "gcnii", "layers": 8},
    "parallelism": {"stages": "auto", "ways": "auto", "chunks": "auto"},
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
}
WHY = "A pipeline of 2 stages is the quickest."
PLAN = json.dumps({"plan": {"stages": 2, "ways": 1, "chunks": 8}, "reason": WHY})
DONE = {"phase": "Succeeded", "exit_code": 0, "at_rest": True, "message": PLAN}


def deleted(decision: Any) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, DeletePod)]


def condition(status: JobStatus, kind: str) -> Condition:
    return next(c for c in status.conditions if c.type == kind)


@pytest.fixture
def auto_job(make_job: Any) -> Any:
    """A job that leaves all to auto."""

    def make(status: JobStatus | None = None, **parts: Any) -> Any:
        fields = {name: parts.pop(name) for name in ("generation",) if name in parts}
        return make_job(status=status, spec={**AUTO, **parts}, **fields)

    return make


@pytest.fixture
def planning_job(auto_job: Any, make_pod: Any, seconds: Any) -> Any:
    """Its pod was created at second 0, and the status says so."""

    def make(**parts: Any) -> Any:
        job = auto_job(**parts)
        return dataclasses.replace(job, status=decide(job, [make_pod(PLANNER)], seconds(0)).status)

    return make


@pytest.fixture
def planned_job(planning_job: Any, make_pod: Any, seconds: Any) -> Any:
    """Its plan is in the status, and no pod is left."""

    def make(**parts: Any) -> Any:
        job = planning_job(**parts)
        return dataclasses.replace(job, status=decide(job, [make_pod(PLANNER, **DONE)], seconds(9)).status)

    return make


# --- from auto to numbers


def test_a_job_that_says_auto_gets_one_pod_that_plans_before_any_status(auto_job: Any, seconds: Any) -> None:
    decision = decide(auto_job(), [], seconds(0))
    assert (decision.actions, decision.status) == ((CreatePod(PLANNER, 0),), JobStatus())


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_while_it_plans_a_job_is_pending_and_says_so_once(
    auto_job: Any, make_pod: Any, seconds: Any, phase: str
) -> None:
    first = decide(auto_job(), [make_pod(PLANNER, phase=phase)], seconds(1))
    assert (first.status.phase, condition(first.status, "Running").reason) == ("Pending", "Planning")
    assert (first.status.plan, first.status.accepted_spec, first.events) == (None, AUTO, ())
    again = decide(auto_job(first.status), [make_pod(PLANNER, phase="Running")], seconds(2))
    assert (again.status, again.actions, again.events) == (first.status, (), ())


def test_the_plan_is_told_and_written_before_its_pod_goes(
    planning_job: Any, make_pod: Any, seconds: Any
) -> None:
    decision = decide(planning_job(), [make_pod(PLANNER, **DONE)], seconds(9))
    assert [(e.type, e.reason, e.message) for e in decision.events] == [
        ("Normal", "Planned", f"stages 2, ways 1, chunks 8: {WHY}")
    ]
    plan = decision.status.plan
    assert plan is not None
    assert (plan.stages, plan.ways, plan.chunks, plan.layers_per_stage) == (2, 1, 8, [4, 4])
    assert (plan.reason, decision.status.phase) == (WHY, "Pending")
    assert deleted(decision) == []
    written = dataclasses.replace(planning_job(), status=decision.status)
    assert deleted(decide(written, [make_pod(PLANNER, **DONE)], seconds(9))) == ["cora-plan-a0"]


def test_with_a_plan_the_job_goes_on_as_if_a_person_had_written_the_numbers(
    planned_job: Any, make_pod: Any, make_gang: Any, seconds: Any, reasons: Any
) -> None:
    job = planned_job()
    leaving = make_pod(PLANNER, **DONE, deletion_deadline=seconds(14))
    decision = decide(job, [leaving], seconds(9))
    assert decision.actions == (CreatePod(0, 0), CreateService(), CreatePod(1, 0))
    assert decision.accepted is not None
    assert decision.accepted.job.spec.parallelism.chunks == 8
    running = decide(job, make_gang(phase="Running"), seconds(12))
    assert (running.status.phase, reasons(running)) == ("Running", ["Created", "Running"])
    assert running.status.plan == job.status.plan  # and the reason stays beside the numbers


def test_a_pod_that_has_planned_is_deleted_again_after_a_crash_and_never_read_twice(
    planned_job: Any, make_pod: Any, make_gang: Any, seconds: Any
) -> None:
    other = json.dumps({"plan": {"stages": 4, "ways": 1, "chunks": 16}, "reason": "Another day."})
    planner = make_pod(PLANNER, **{**DONE, "message": other})
    decision = decide(planned_job(), [planner, *make_gang()], seconds(10))
    assert (deleted(decision), decision.status.plan) == (["cora-plan-a0"], planned_job().status.plan)


@pytest.mark.parametrize("clean", ["Running", "None"])
def test_a_pod_that_has_planned_is_not_kept_when_the_job_ends(
    planned_job: Any, make_pod: Any, seconds: Any, clean: str
) -> None:
    job = planned_job(runPolicy={"activeDeadlineSeconds": 60, "cleanPods": clean})
    planner = make_pod(PLANNER, **DONE)
    ended = decide(job, [planner], seconds(60))
    assert (ended.status.phase, deleted(ended)) == ("Failed", ["cora-plan-a0"])
    job = dataclasses.replace(job, status=ended.status)  # and the operator died before it could
    assert deleted(decide(job, [planner], seconds(61))) == ["cora-plan-a0"]


def test_restarts_keep_the_plan(planned_job: Any, make_gang: Any, seconds: Any) -> None:
    job = planned_job()
    job = dataclasses.replace(job, status=decide(job, make_gang(phase="Running"), seconds(12)).status)
    failed = decide(job, make_gang(phase="Failed", exit_code=1, at_rest=True), seconds(20))
    job = dataclasses.replace(job, status=failed.status)
    assert decide(job, [], seconds(30)).actions == (CreatePod(0, 1), CreateService(), CreatePod(1, 1))


def test_a_job_that_an_older_operator_started_keeps_the_numbers_that_it_runs_with(
    auto_job: Any, make_job: Any, make_gang: Any, seconds: Any
) -> None:
    fixed = make_job(spec={**AUTO, "parallelism": {"stages": 2, "chunks": 8}})
    status = decide(fixed, make_gang(phase="Running"), seconds(0)).status
    job = auto_job(status.model_copy(update={"accepted_spec": AUTO}))
    decision = decide(job, make_gang(phase="Running"), seconds(60))
    assert (decision.status, decision.actions) == (job.status, ())


# --- when planning does not end well


@pytest.mark.parametrize(
    ("end", "phase", "failures", "reason"),
    [
        ({"exit_code": 75}, "Restarting", 0, "Preempted"),
        ({"phase": "Failed", "reason": "Evicted"}, "Restarting", 0, "Evicted"),
        ({"exit_code": 1, "message": "KeyError: x"}, "Restarting", 1, "PlanningFailed"),
        ({"exit_code": 137, "reason": "OOMKilled"}, "Restarting", 1, "OutOfMemory"),
        ({"exit_code": 0, "message": "all is well"}, "Restarting", 1, "PlanUnreadable"),
        ({"exit_code": 2, "message": "spec.graph.path: no such file"}, "Failed", 0, "InvalidData"),
    ],
)
def test_a_bad_end_of_the_planning_pod_is_judged_as_a_gangs(
    planning_job: Any,
    make_pod: Any,
    seconds: Any,
    end: dict[str, Any],
    phase: Any,
    failures: int,
    reason: str,
) -> None:
    decision = decide(planning_job(), [make_pod(PLANNER, **end)], seconds(9))
    status = decision.status
    assert (status.phase, status.failures, condition(status, phase).reason) == (phase, failures, reason)
    assert "planning (pod cora-plan-a0)" in (status.message or "")
    assert not any(isinstance(action, CreatePod) for action in decision.actions)


def test_a_planning_pod_that_is_lost_is_made_again_as_the_next_attempt(
    planning_job: Any, make_pod: Any, seconds: Any
) -> None:
    job = planning_job()
    lost = decide(job, [], seconds(9))
    assert "planning (pod cora-plan-a0) is gone" in (lost.status.message or "")
    assert (lost.status.restarts, lost.status.failures, lost.wake_at) == (1, 0, seconds(14))
    job = dataclasses.replace(job, status=lost.status)
    assert decide(job, [], seconds(13)).actions == ()
    assert decide(job, [], seconds(14)).actions == (CreatePod(PLANNER, 1),)
    again = decide(job, [make_pod(PLANNER, 1)], seconds(15)).status
    assert (again.phase, again.restart_time) == ("Pending", None)


def test_failures_of_planning_count_against_the_limit(planning_job: Any, make_pod: Any, seconds: Any) -> None:
    job = planning_job(runPolicy={"backoffLimit": 0})
    decision = decide(job, [make_pod(PLANNER, phase="Failed", exit_code=1)], seconds(9))
    assert condition(decision.status, "Failed").reason == "BackoffLimitExceeded"
    assert deleted(decision) == []  # it stays with its log, as the pods of a gang do


@pytest.mark.parametrize(("clean", "left"), [("All", []), ("Running", ["cora-plan-a0"])])
def test_of_a_job_that_failed_in_planning_its_pod_is_kept_by_the_policy(
    planning_job: Any, make_pod: Any, seconds: Any, clean: str, left: list[str]
) -> None:
    job = planning_job(runPolicy={"cleanPods": clean})
    pods = [make_pod(PLANNER, phase="Failed", exit_code=2)]
    decision = decide(job, pods, seconds(9))
    assert [pod.name for pod in pods if pod.name not in deleted(decision)] == left


def test_what_keeps_the_planning_pod_from_running_is_told_and_ends_by_the_deadline(
    auto_job: Any, make_pod: Any, seconds: Any, reasons: Any
) -> None:
    job = auto_job(runPolicy={"preRunningDeadlineSeconds": 60})
    pods = [make_pod(PLANNER, unschedulable="0/3 nodes are available")]
    begun = decide(job, pods, seconds(0))
    assert (reasons(begun), begun.wake_at) == (["Unschedulable"], seconds(60))
    assert begun.status.message == "planning (pod cora-plan-a0): 0/3 nodes are available"
    job = dataclasses.replace(job, status=begun.status)
    late = decide(job, pods, seconds(60)).status
    assert condition(late, "Failed").reason == "PreRunningDeadlineExceeded"
    running = [make_pod(PLANNER, phase="Running")]
    assert (
        decide(job, running, seconds(999)).status.phase == "Pending"
    )  # to plan takes the time that it takes


def test_a_planning_pod_that_the_api_server_refuses_is_told_as_a_stages_is(
    auto_job: Any, seconds: Any
) -> None:
    waiting = decide(auto_job(), [], seconds(0), refusal=Refusal("exceeded quota", False, seconds(30)))
    assert condition(waiting.status, "Running").reason == "PodRefused"
    final = decide(auto_job(), [], seconds(0), refusal=Refusal("no such field", True, seconds(0)))
    assert condition(final.status, "Failed").reason == "InvalidSpec"


def test_the_active_deadline_counts_while_the_job_is_planned(
    planning_job: Any, make_pod: Any, seconds: Any
) -> None:
    job = planning_job(runPolicy={"activeDeadlineSeconds": 60})
    decision = decide(job, [make_pod(PLANNER, phase="Running")], seconds(60))
    assert condition(decision.status, "Failed").reason == "DeadlineExceeded"
    assert deleted(decision) == ["cora-plan-a0"]


# --- people


def test_a_job_suspended_in_planning_is_planned_anew_when_it_resumes(
    planning_job: Any, make_pod: Any, seconds: Any
) -> None:
    job = planning_job()
    job = dataclasses.replace(job, spec={**AUTO, "runPolicy": {"suspend": True}}, generation=2)
    suspended = decide(job, [make_pod(PLANNER, phase="Running")], seconds(9))
    assert (suspended.status.phase, deleted(suspended)) == ("Suspended", ["cora-plan-a0"])
    job = dataclasses.replace(job, spec=AUTO, generation=3, status=suspended.status)
    job = dataclasses.replace(job, status=decide(job, [], seconds(50)).status)
    assert decide(job, [], seconds(50)).actions == (CreatePod(PLANNER, 1),)


def test_a_plan_outlives_a_suspension_and_every_edit_but_one_of_the_cut(
    planned_job: Any, seconds: Any
) -> None:
    job = planned_job()
    suspended = {**AUTO, "runPolicy": {"suspend": True}, "training": {"epochs": 7}}
    job = dataclasses.replace(job, spec=suspended, generation=2)
    job = dataclasses.replace(job, status=decide(job, [], seconds(20)).status)
    assert job.status.plan is not None
    cut = {**suspended, "parallelism": {"stages": "auto", "maxRanks": 2}}
    job = dataclasses.replace(job, spec=cut, generation=3)
    edited = decide(job, [], seconds(30)).status
    assert (edited.plan, edited.attempt) == (
        None,
        1,
    )  # a new attempt: the old planner's name may still be taken
    job = dataclasses.replace(job, spec={**cut, "runPolicy": {}}, generation=4, status=edited)
    job = dataclasses.replace(job, status=decide(job, [], seconds(40)).status)
    assert decide(job, [], seconds(40)).actions == (CreatePod(PLANNER, 1),)


def test_numbers_that_a_person_writes_in_place_of_auto_need_no_planner(
    planned_job: Any, seconds: Any
) -> None:
    spec = {**AUTO, "parallelism": {"stages": 1}}
    job = dataclasses.replace(planned_job(), spec=spec, generation=2)
    status = decide(job, [], seconds(20)).status
    assert status.plan is not None
    assert (status.plan.stages, status.plan.reason) == (1, None)
    assert decide(dataclasses.replace(job, status=status), [], seconds(20)).actions == (CreatePod(0, 0),)


def test_an_edit_under_a_planning_pod_waits(planning_job: Any, make_pod: Any, seconds: Any) -> None:
    spec = {**AUTO, "parallelism": {"stages": 1}}
    job = dataclasses.replace(planning_job(), spec=spec, generation=2)
    decision = decide(job, [make_pod(PLANNER, phase="Running")], seconds(9))
    assert ([e.reason for e in decision.events], decision.actions) == (["EditRefused"], ())
    assert decision.status.accepted_spec == AUTO


def test_a_planner_of_a_spec_edited_before_it_was_written_down_is_not_listened_to(
    auto_job: Any, make_pod: Any, seconds: Any
) -> None:
    job = auto_job(generation=2)
    decision = decide(job, [make_pod(PLANNER, generation=1, **DONE)], seconds(1))
    assert decision.status.plan is None
    assert deleted(decision) == ["cora-plan-a0"]


def test_stages_whose_plan_was_lost_with_the_status_give_way_to_a_new_plan(
    auto_job: Any, make_gang: Any, seconds: Any
) -> None:
    decision = decide(auto_job(), make_gang(phase="Running"), seconds(99))
    assert (deleted(decision), decision.status.attempt) == (["cora-s0-a0", "cora-s1-a0"], 1)


# --- what the planner says


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("", "holds none"),
        ("[" * 4000, "holds none"),
        ("7", "holds none"),
        ({"plan": {"stages": 2, "ways": 1}}, "stages, ways and chunks"),
        ({"plan": {"stages": True, "ways": 1, "chunks": 1}}, "stages, ways and chunks"),
        ({"plan": {"stages": 0, "ways": 1, "chunks": 1}}, "stages, ways and chunks"),
        ({"plan": {"stages": 5, "ways": 1, "chunks": 5}}, "5 ranks, but auto may take 4 at most"),
        ({"plan": {"stages": 1, "ways": 2, "chunks": 3}}, "cannot share 3 chunks evenly"),
    ],
)
def test_only_a_plan_that_the_manifest_allows_is_believed(auto_job: Any, said: Any, complaint: str) -> None:
    job = parse_job(manifest_of(auto_job(), AUTO))
    with pytest.raises(ValueError, match=complaint):
        read_plan(job, said if isinstance(said, str) else json.dumps(said))


def test_numbers_beside_auto_stay(auto_job: Any) -> None:
    spec = {**AUTO, "parallelism": {"stages": 3, "ways": "auto"}}
    job = parse_job(manifest_of(auto_job(), spec))
    with pytest.raises(ValueError, match="stages 2 were planned, but the manifest says 3"):
        read_plan(job, PLAN)
