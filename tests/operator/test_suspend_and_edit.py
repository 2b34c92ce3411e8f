"""Suspending, resuming and editing a job under way. Two stages, 8 layers; times are seconds after creation."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gnnpipe_api.status import Condition, JobStatus
from gnnpipe_operator.actions import CreatePod, CreateService, DeletePod
from gnnpipe_operator.decide import decide


def deleted(decision: Any) -> list[str]:
    return [action.name for action in decision.actions if isinstance(action, DeletePod)]


def condition(status: JobStatus, kind: str) -> Condition:
    return next(c for c in status.conditions if c.type == kind)


# --- suspending


def test_a_suspended_job_lets_its_pods_checkpoint_and_go(
    running_job: Any, make_job: Any, make_gang: Any, seconds: Any, reasons: Any
) -> None:
    job = make_job(status=running_job().status, run_policy={"suspend": True}, generation=2)
    decision = decide(job, make_gang(phase="Running"), seconds(50))
    assert (decision.status.phase, reasons(decision)) == ("Suspended", ["Suspended"])
    assert [a.grace_seconds for a in decision.actions if isinstance(a, DeletePod)] == [None, None]
    assert decision.status.restarts == 0


def test_a_resumed_job_makes_a_new_gang_and_is_told_so(
    running_job: Any, make_job: Any, make_gang: Any, seconds: Any, reasons: Any
) -> None:
    suspended = make_job(status=running_job().status, run_policy={"suspend": True}, generation=2)
    status = decide(suspended, make_gang(phase="Running"), seconds(50)).status
    resumed = make_job(status=status, run_policy={"suspend": False}, generation=3)
    settled = decide(resumed, [], seconds(150))
    resumed = dataclasses.replace(resumed, status=settled.status)
    assert reasons(settled) == ["Resumed"]
    assert decide(resumed, [], seconds(150)).actions == (CreatePod(0, 1), CreateService(), CreatePod(1, 1))
    running = decide(resumed, make_gang(attempt=1, phase="Running"), seconds(151)).status
    assert (running.phase, running.suspended_seconds, running.suspend_time) == ("Running", 100, None)


def test_a_job_born_suspended_creates_nothing(make_job: Any, seconds: Any) -> None:
    decision = decide(make_job(run_policy={"suspend": True}), [], seconds(0))
    assert (decision.actions, decision.status.phase, decision.status.attempt) == ((), "Suspended", 0)


# --- editing


EDITS: list[tuple[dict[str, Any], str]] = [
    ({"model": {"kind": "gcnii", "layers": 16}}, "spec.model cannot change in a job's life"),
    ({"parallelism": {"stages": 4}}, "spec.parallelism cannot change while the job runs"),
    ({"training": {"epochs": 5}}, "spec.training cannot change while the job runs"),
    ({"parallelism": {"stages": 99}}, "99 stages need at least 99 layers"),
]


@pytest.mark.parametrize(("edit", "words"), EDITS)
def test_an_edit_that_a_running_gang_cannot_take_is_refused_with_a_sentence(
    running_job: Any, make_gang: Any, seconds: Any, edit: dict[str, Any], words: str
) -> None:
    job = running_job()
    edited = dataclasses.replace(job, spec={**job.spec, **edit}, generation=2)
    decision = decide(edited, make_gang(phase="Running"), seconds(9))
    assert [(e.reason, words in e.message) for e in decision.events] == [("EditRefused", True)]
    assert (decision.status.accepted_spec, decision.actions) == (job.spec, ())
    assert decision.status.observed_generation == 2
    told = dataclasses.replace(edited, status=decision.status)
    assert decide(told, make_gang(phase="Running"), seconds(10)).events == ()


def test_the_run_policy_may_change_while_the_job_runs(running_job: Any, make_gang: Any, seconds: Any) -> None:
    job = running_job()
    edited = dataclasses.replace(
        job, spec={**job.spec, "runPolicy": {"activeDeadlineSeconds": 5}}, generation=2
    )
    decision = decide(edited, make_gang(phase="Running"), seconds(9))
    assert condition(decision.status, "Failed").reason == "DeadlineExceeded"


def test_a_suspended_job_may_be_cut_anew_but_keeps_its_model(
    running_job: Any, make_gang: Any, make_job: Any, seconds: Any
) -> None:
    suspended = make_job(status=running_job().status, run_policy={"suspend": True}, generation=2)
    status = decide(suspended, make_gang(phase="Running"), seconds(5)).status
    spec = {**suspended.spec, "parallelism": {"stages": 4}, "model": {"kind": "gcn", "layers": 8}}
    edited = dataclasses.replace(suspended, spec=spec, status=status, generation=3)
    decision = decide(edited, [], seconds(9))
    assert decision.status.plan is not None
    assert decision.status.plan.stages == 4
    assert decision.status.accepted_spec is not None
    assert decision.status.accepted_spec["model"]["kind"] == "gcnii"
    assert [e.reason for e in decision.events] == ["EditRefused"]


def test_an_edit_that_comes_with_a_suspension_is_taken_without_a_word(
    running_job: Any, make_gang: Any, seconds: Any
) -> None:
    job, gang = running_job(), make_gang(phase="Running")
    spec = {**job.spec, "training": {"epochs": 5}, "runPolicy": {"suspend": True}}
    suspending = dataclasses.replace(job, spec=spec, generation=2)
    first = decide(suspending, gang, seconds(9))
    assert [event.reason for event in first.events] == ["Suspended"]
    then = decide(dataclasses.replace(suspending, status=first.status), gang, seconds(9))
    assert (then.status.accepted_spec, then.events) == (spec, ())


def test_pods_made_from_a_spec_edited_before_it_was_written_down_are_not_the_gang(
    make_job: Any, make_gang: Any, seconds: Any
) -> None:
    decision = decide(make_job(generation=2), make_gang(generation=1), seconds(1))
    assert (deleted(decision), decision.status.attempt) == (["cora-s0-a0", "cora-s1-a0"], 1)
