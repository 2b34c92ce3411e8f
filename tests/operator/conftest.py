"""For the pure tests: jobs and pods as the operator sees them. For the cluster tests: operator and kubelet."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness.controlplane import ControlPlane
from harness.fixtures import fresh_namespace
from harness.forkserver import ForkServer
from harness.processes import poll

from gnnpipe_api.status import JobStatus
from gnnpipe_operator.actions import Decision
from gnnpipe_operator.decide import decide
from gnnpipe_operator.labels import pod_name
from gnnpipe_operator.observed import ObservedJob, ObservedPod

sys.path.append(str(Path(__file__).parent))  # played_cluster.py and played_world.py beside this file

from played_cluster import SPEC, Operator, Play

START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
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


# --- against a real API server


@pytest.fixture
def play(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[Play]:
    """A namespace without an operator; for tests that ask for `operator` the one that it watches."""
    theirs = "shared_namespace" if "operator" in request.fixturenames else "namespace"
    playing = Play(control_plane.kubeconfig, request.getfixturevalue(theirs))
    assert (playing.jobs(), playing.pods(), playing.services()) == ({}, [], [])
    yield playing
    playing.clear()


@pytest.fixture
def play_at() -> Callable[..., Play]:
    """For tests with a control plane or a namespace of their own, which they take away themselves."""

    def make(control_plane: ControlPlane, namespace: str = "default") -> Play:
        playing = Play(control_plane.kubeconfig, namespace)
        # Pods are refused until the controller manager has made the namespace's account.
        account = poll(lambda: playing.core.list_namespaced_service_account(namespace).items, 30, every=0.2)
        assert account, f"no service account in {namespace} within 30 s"
        return playing

    return make


@pytest.fixture
def make_operator(
    control_plane: ControlPlane, operator_program: ForkServer, namespace: str, tmp_path: Path
) -> Iterator[Callable[..., Operator]]:
    """Makes operators that watch the test's namespace; all are killed and their logs judged at the end."""
    made: list[Operator] = []

    def make(*arguments: str, kubeconfig: Path | None = None, everywhere: bool = False) -> Operator:
        folder = tmp_path / f"operator-{len(made)}"
        folder.mkdir()
        chosen = kubeconfig or control_plane.kubeconfig
        scope = () if everywhere else (f"--namespace={namespace}",)
        made.append(Operator(operator_program, chosen, folder, *scope, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.kill()  # kopf takes five seconds to say goodbye
        each.judge()


@pytest.fixture(scope="session")
def shared_namespace(control_plane: ControlPlane) -> Iterator[str]:
    with fresh_namespace(control_plane) as name:
        yield name


@pytest.fixture(scope="session")
def shared_operator(
    control_plane: ControlPlane,
    operator_program: ForkServer,
    shared_namespace: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Operator]:
    """An operator that has begun to watch: its first look at the cluster is no part of any time limit."""
    folder = tmp_path_factory.mktemp("operator")
    scope = f"--namespace={shared_namespace}"
    started = Operator(operator_program, control_plane.kubeconfig, folder, scope).start()
    playing = Play(control_plane.kubeconfig, shared_namespace)
    playing.apply("canary", runPolicy={"suspend": True})
    playing.until_phase("canary", "Suspended", within=60)
    playing.clear()
    yield started
    started.stop()


@pytest.fixture
def operator(shared_operator: Operator) -> Iterator[Operator]:
    """The operator that lives through all tests of this run, one after the other, as in a cluster."""
    yield shared_operator
    assert shared_operator.process is not None
    assert shared_operator.process.alive
    shared_operator.judge()
