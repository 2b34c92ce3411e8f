"""For the pure tests: jobs and pods as the operator sees them. For the cluster tests: operator and kubelet."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from harness.controlplane import ControlPlane
from harness.processes import Process, poll
from harness.processes import start as start_process

from gnnpipe_api.contract import GROUP, KIND, PLURAL, TRAINER_CONTAINER, VERSION
from gnnpipe_api.crd import crd
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
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
}

# A container's state without what happens to it.
CONTAINER = {"name": TRAINER_CONTAINER, "image": "", "imageID": "", "ready": False, "restartCount": 0}

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


# --- against a real API server: the operator as a process, and a test that plays the kubelet


class Operator:
    """An operator process. `stop` fails the test on any error in its log that the test did not announce."""

    def __init__(self, kubeconfig: Path, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "GNNPIPE_TRAINER_IMAGE": "gnnpipe-trainer:test",
        }
        self._started = 0
        self.allowed: list[str] = []  # regular expressions of errors that the test provokes
        self.process: Process | None = None

    def start(self) -> Operator:
        self._started += 1
        ports = ["--metrics-port=0", "--probe-port=0"]
        given = {argument.split("=")[0] for argument in self._arguments}
        command = [
            sys.executable,
            "-m",
            "gnnpipe_operator.main",
            *self._arguments,
            *(port for port in ports if port.split("=")[0] not in given),
        ]
        name = f"operator-{self._started}"
        self.process = start_process(name, command, self._folder, environment=self.environment)
        return self

    def kill(self) -> None:
        """As by the kernel: no chance to tidy up."""
        assert self.process is not None
        self.process.stop(grace_seconds=0)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
        bad = [line for line in self.log().splitlines() if self._is_bad(line)]
        assert not bad, "unexpected errors in the operator's log:\n" + "\n".join(bad)

    def log(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self._folder.glob("operator-*.log")))

    def _is_bad(self, line: str) -> bool:
        bad = re.search(r" (ERROR|CRITICAL) |Traceback|Exception", line)
        return bool(bad) and not any(re.search(allowed, line) for allowed in self.allowed)


class Play:
    """One namespace of a real API server: a person's hands, and the kubelet's."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        client = kubernetes.config.new_client_from_config(str(kubeconfig))
        self.namespace = namespace
        self.core = kubernetes.client.CoreV1Api(client)
        self.custom = kubernetes.client.CustomObjectsApi(client)
        self.raw = client

    # a person

    def apply(self, name: str, **parts: Any) -> dict[str, Any]:
        body = manifest(name, **parts)
        job = self.custom.create_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, body)
        return dict(job)

    def edit(self, name: str, spec: dict[str, Any]) -> None:
        body = {"spec": spec}
        self.custom.patch_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name, body)

    def delete(self, name: str) -> None:
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)

    def jobs(self) -> dict[str, dict[str, Any]]:
        found = self.custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)
        return {job["metadata"]["name"]: job for job in found["items"]}

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.jobs()[name].get("status") or {})

    def phase(self, name: str) -> str | None:
        return self.status(name).get("phase")

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        return next(c for c in self.status(name).get("conditions", []) if c["type"] == kind)

    def events(self, name: str) -> list[tuple[str, str]]:
        """(type, reason) of the job's Events, oldest first."""
        found = self.core.list_namespaced_event(
            self.namespace, field_selector=f"involvedObject.name={name},involvedObject.kind=GNNPipeJob"
        )
        told = sorted(found.items, key=lambda e: (e.first_timestamp, int(e.metadata.resource_version)))
        return [(event.type, event.reason) for event in told]

    # the kubelet

    def pods(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.core.list_namespaced_pod(self.namespace).items)

    def services(self) -> list[str]:
        return sorted(s.metadata.name for s in self.core.list_namespaced_service(self.namespace).items)

    def pod_status(self, pod: str, **status: Any) -> None:
        self.core.patch_namespaced_pod_status(pod, self.namespace, {"status": status})

    def run(self, *pods: str, **status: Any) -> None:
        for pod in pods or self.pods():
            self.pod_status(pod, phase="Running", **status)

    def end(self, pod: str, exit_code: int, message: str = "", reason: str = "") -> None:
        done = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        terminated = {"exitCode": exit_code, "message": message, "reason": reason, "finishedAt": done}
        phase = "Failed" if exit_code else "Succeeded"
        self.pod_status(
            pod, phase=phase, containerStatuses=[{**CONTAINER, "state": {"terminated": terminated}}]
        )

    def wait(self, pod: str, reason: str, message: str) -> None:
        """The trainer cannot start."""
        waiting = {"reason": reason, "message": message}
        self.pod_status(pod, containerStatuses=[{**CONTAINER, "state": {"waiting": waiting}}])

    def remove_pod(self, pod: str) -> None:
        self.core.delete_namespaced_pod(pod, self.namespace, grace_period_seconds=0)

    # waiting and tidying up

    def until(self, what: str, condition: Callable[[], Any], within: float = 20) -> None:
        if not poll(condition, within, every=0.05):
            jobs = {name: job.get("status") for name, job in self.jobs().items()}
            pytest.fail(
                f"not within {within} s: {what}\npods: {self.pods()}\njobs: {json.dumps(jobs, indent=1)}"
            )

    def until_phase(self, name: str, phase: str, within: float = 20) -> None:
        self.until(f"{name} is {phase}", lambda: self.phase(name) == phase, within)

    def until_pods(self, *pods: str, within: float = 20) -> None:
        self.until(f"pods are {pods}", lambda: self.pods() == sorted(pods), within)

    def clear(self) -> None:
        for name in self.jobs():
            self.delete(name)
        self.until("the garbage collector took it all", lambda: not (self.pods() or self.services()), 40)


def manifest(name: str, **parts: Any) -> dict[str, Any]:
    """A valid job of two stages; its pods wait for a scheduler that does not exist, so that nobody interferes."""
    worker = {"template": {"spec": {"schedulerName": "the-test"}}}
    spec = {**copy.deepcopy(SPEC), "worker": worker, **parts}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="session")
def job_crd(control_plane: ControlPlane) -> None:
    control_plane.kubectl.apply(crd())
    name = f"crd/{PLURAL}.{GROUP}"
    control_plane.kubectl("wait", "--for=condition=Established", name, "--timeout=20s")


@pytest.fixture
def play(control_plane: ControlPlane, job_crd: None, namespace: str) -> Iterator[Play]:
    playing = Play(control_plane.kubeconfig, namespace)
    yield playing
    playing.clear()


@pytest.fixture
def play_at() -> Callable[..., Play]:
    """For tests with a control plane or a namespace of their own, which they take away themselves."""

    def make(control_plane: ControlPlane, namespace: str = "default") -> Play:
        control_plane.kubectl.apply(crd())
        control_plane.kubectl("wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}", "--timeout=20s")
        playing = Play(control_plane.kubeconfig, namespace)
        # Pods are refused until the controller manager has made the namespace's account.
        account = poll(lambda: playing.core.list_namespaced_service_account(namespace).items, 30, every=0.2)
        assert account, f"no service account in {namespace} within 30 s"
        return playing

    return make


@pytest.fixture
def make_operator(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[Callable[..., Operator]]:
    """Makes operators that watch the test's namespace; all are stopped and their logs judged at the end."""
    made: list[Operator] = []

    def make(*arguments: str, kubeconfig: Path | None = None, everywhere: bool = False) -> Operator:
        folder = tmp_path / f"operator-{len(made)}"
        folder.mkdir()
        chosen = kubeconfig or control_plane.kubeconfig
        scope = () if everywhere else (f"--namespace={namespace}",)
        made.append(Operator(chosen, folder, *scope, *arguments))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def operator(make_operator: Callable[..., Operator], play: Play) -> Operator:
    """An operator that has begun to watch: its first look at the cluster is no part of any time limit."""
    started = make_operator().start()
    play.apply("canary", runPolicy={"suspend": True})
    play.until_phase("canary", "Suspended", within=60)
    play.delete("canary")
    play.until("the canary is gone", lambda: not play.jobs())
    return started
