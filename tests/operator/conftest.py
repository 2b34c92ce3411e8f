"""Builders for the pure tests: a job and pods as the operator sees them, and a clock that only tests move."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gnnpipe_api.status import JobStatus
from gnnpipe_operator.actions import Decision
from gnnpipe_operator.decide import decide
from gnnpipe_operator.labels import pod_name
from gnnpipe_operator.observed import ObservedJob, ObservedPod

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "graph": {"source": "synthetic"},
    "model": {"kind": "gcnii", "layers": 8},
    "parallelism": {"stages": 2},
}

MakeJob = Callable[..., ObservedJob]
MakePod = Callable[..., ObservedPod]
MakeGang = Callable[..., list[ObservedPod]]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.fixture
def seconds() -> Callable[[float], datetime]:
    """A moment, in seconds after the job was created."""
    return at


@pytest.fixture
def make_job() -> MakeJob:
    def make(
        status: JobStatus | None = None, run_policy: dict[str, Any] | None = None, **fields: Any
    ) -> ObservedJob:
        spec = copy.deepcopy(fields.pop("spec", SPEC))
        if run_policy:
            spec["runPolicy"] = run_policy
        return ObservedJob(
            name="cora",
            namespace="team",
            uid="job-uid",
            created=START,
            spec=spec,
            status=status or JobStatus(),
            **fields,
        )

    return make


@pytest.fixture
def make_pod() -> MakePod:
    def make(stage: int, attempt: int = 0, **fields: Any) -> ObservedPod:
        name = pod_name("cora", stage, attempt)
        return ObservedPod(
            name=name, uid=f"uid-{name}", stage=stage, attempt=attempt, created=START, **fields
        )

    return make


@pytest.fixture
def make_gang(make_pod: MakePod) -> MakeGang:
    """All pods of an attempt, alike."""

    def make(attempt: int = 0, stages: int = 2, **fields: Any) -> list[ObservedPod]:
        return [make_pod(stage, attempt, **fields) for stage in range(stages)]

    return make


@pytest.fixture
def running_job(make_job: MakeJob, make_gang: MakeGang) -> Callable[..., ObservedJob]:
    """A job whose first attempt runs since second 0, with the status that the operator gave it."""

    def make(**fields: Any) -> ObservedJob:
        job = make_job(**fields)
        status = decide(job, make_gang(phase="Running"), START).status
        return make_job(**{**fields, "status": status})

    return make


@pytest.fixture
def reasons() -> Callable[[Decision], list[str]]:
    return lambda decision: [event.reason for event in decision.events]
