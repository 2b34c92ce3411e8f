"""Raw objects of the API server, read into what the policies need."""

from __future__ import annotations

from typing import Any

import pytest

from gnnpipe_api.contract import TRAINER_CONTAINER
from gnnpipe_api.status import JobStatus
from gnnpipe_operator.observed import job_of_pod, observe_job, observe_pod


def raw_pod(status: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "cora-s1-a2",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T12:00:00Z",
            "labels": {"gnnpipe.io/job": "cora", "gnnpipe.io/stage": "1", "gnnpipe.io/attempt": "2"},
            "ownerReferences": [{"name": "cora", "uid": "job-uid", "controller": True}],
            **metadata,
        },
        "status": status or {},
    }


def state(name: str, **kind: Any) -> dict[str, Any]:
    return {"name": name, "state": kind}


def test_the_trainers_end_counts_and_a_sidecars_does_not() -> None:
    status = {
        "phase": "Running",
        "containerStatuses": [
            state("logs", terminated={"exitCode": 9}),
            state(
                TRAINER_CONTAINER,
                terminated={"exitCode": 0, "finishedAt": "2026-01-01T12:05:00Z", "message": "{}"},
            ),
        ],
    }
    pod = observe_pod(raw_pod(status))
    assert (pod.stage, pod.attempt, pod.exit_code, pod.succeeded) == (1, 2, 0, True)


def test_an_init_container_that_fails_fails_the_pod() -> None:
    status = {
        "phase": "Failed",
        "initContainerStatuses": [state("fetch", terminated={"exitCode": 3, "reason": "Error"})],
        "containerStatuses": [state(TRAINER_CONTAINER, waiting={"reason": "PodInitializing"})],
    }
    assert observe_pod(raw_pod(status)).exit_code == 3


def test_a_waiting_trainer_keeps_its_reason_but_an_ordinary_start_is_none() -> None:
    pulling = {
        "containerStatuses": [
            state(TRAINER_CONTAINER, waiting={"reason": "ErrImagePull", "message": "no such tag"})
        ]
    }
    starting = {"containerStatuses": [state(TRAINER_CONTAINER, waiting={"reason": "ContainerCreating"})]}
    assert (observe_pod(raw_pod(pulling)).waiting, observe_pod(raw_pod(pulling)).message) == (
        "ImagePullBackOff",
        "no such tag",
    )
    assert observe_pod(raw_pod(starting)).waiting == ""


def test_an_evicted_pod_without_container_states_has_failed() -> None:
    pod = observe_pod(raw_pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}))
    assert (pod.failed, pod.reason, pod.message) == (True, "Evicted", "low on memory")


@pytest.mark.parametrize(
    ("phase", "containers", "over"),
    [
        ("Failed", [state(TRAINER_CONTAINER, terminated={"exitCode": 75})], True),
        ("Failed", [state(TRAINER_CONTAINER, waiting={"reason": "ContainerCreating"})], True),
        ("Failed", [state(TRAINER_CONTAINER, running={})], False),
        ("Failed", [], False),
        ("Running", [state(TRAINER_CONTAINER, terminated={"exitCode": 0}), state("logs", running={})], False),
    ],
    ids=["ended", "ended and cleared up", "its node is lost", "evicted, nobody knows", "a sidecar runs on"],
)
def test_a_pod_is_over_when_its_kubelet_says_that_nothing_runs(
    phase: str, containers: list[dict[str, Any]], over: bool
) -> None:
    assert observe_pod(raw_pod({"phase": phase, "containerStatuses": containers})).over is over


@pytest.mark.parametrize(
    ("ready", "containers_ready", "gates", "lost"),
    [
        ("True", "True", [], False),
        ("False", "True", [], True),
        ("False", "False", [], False),
        ("False", "True", [{"conditionType": "load-balancer"}], False),
    ],
    ids=["all is well", "its node is silent", "it starts or ends", "a gate keeps it from being ready"],
)
def test_a_pod_whose_node_no_longer_reports_is_known_by_its_conditions(
    ready: str, containers_ready: str, gates: list[dict[str, str]], lost: bool
) -> None:
    told = {"Ready": ready, "ContainersReady": containers_ready}
    conditions = [{"type": kind, "status": value} for kind, value in told.items()]
    raw = {**raw_pod({"phase": "Running", "conditions": conditions}), "spec": {"readinessGates": gates}}
    assert observe_pod(raw).node_lost == lost


def test_a_pod_that_only_looks_like_ours_belongs_to_nobody() -> None:
    assert job_of_pod(raw_pod()) == "cora"
    assert job_of_pod(raw_pod(ownerReferences=[])) is None
    assert job_of_pod(raw_pod(ownerReferences=[{"name": "other", "controller": True}])) is None
    assert job_of_pod(raw_pod(labels={"gnnpipe.io/job": "cora"})) is None
    assert job_of_pod(raw_pod(labels={**raw_pod()["metadata"]["labels"], "gnnpipe.io/stage": "one"})) is None


def test_the_pod_that_plans_is_the_jobs_but_no_stage() -> None:
    planning = raw_pod(labels={**raw_pod()["metadata"]["labels"], "gnnpipe.io/stage": "plan"})
    assert job_of_pod(planning) == "cora"
    assert (observe_pod(planning).plans, observe_pod(raw_pod()).plans) == (True, False)


def test_a_status_that_somebody_spoilt_counts_as_none() -> None:
    meta = {
        "name": "cora",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T12:00:00Z",
    }
    assert observe_job({"metadata": meta, "spec": {}, "status": {"attempt": "many"}}).status == JobStatus()
