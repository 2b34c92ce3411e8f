"""Against a real API server: the operator as a process, and a test that plays a person and the kubelet."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from harness.forkserver import ForkServer
from harness.processes import Process, poll

from gnnpipe_api.contract import GROUP, KIND, PLURAL, TRAINER_CONTAINER, VERSION

SPEC: dict[str, Any] = {
    "graph": {"source": "synthetic"},
    "model": {"kind": "gcnii", "layers": 8},
    "parallelism": {"stages": 2},
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}},
}

# A container's state without what happens to it.
CONTAINER = {"name": TRAINER_CONTAINER, "image": "", "imageID": "", "ready": False, "restartCount": 0}


class Operator:
    """An operator process. `judge` fails the test on any error in its log that the test did not announce."""

    def __init__(self, program: ForkServer, kubeconfig: Path, folder: Path, *arguments: str) -> None:
        self._program = program
        self._folder = folder
        self._arguments = arguments
        self.environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "GNNPIPE_TRAINER_IMAGE": "gnnpipe-trainer:test",
        }
        self._started = 0
        self._judged = 0  # characters of the log that earlier tests have answered for
        self.allowed: list[str] = []  # regular expressions of errors that the test provokes
        self.process: Process | None = None

    def start(self) -> Operator:
        self._started += 1
        given = {argument.split("=")[0] for argument in self._arguments}
        ports = [f"{port}=0" for port in ("--metrics-port", "--probe-port") if port not in given]
        name = f"operator-{self._started:02}"
        self.process = self._program.start(name, [*self._arguments, *ports], self._folder, self.environment)
        return self

    def kill(self) -> None:
        """As by the kernel: no chance to tidy up."""
        if self.process is not None:
            self.process.stop(grace_seconds=0)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()
        self.judge()

    def judge(self) -> None:
        log = self.log()
        bad = [line for line in log[self._judged :].splitlines() if self._is_bad(line)]
        self._judged = len(log)
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

    def plan(self, pod: str, stages: int) -> None:
        """The pod that plans has found how to cut the job."""
        plan = {"stages": stages, "ways": 1, "chunks": 4 * stages}
        self.end(pod, 0, json.dumps({"plan": plan, "reason": "It is the quickest."}))

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
        self.core.delete_collection_namespaced_event(self.namespace)


def manifest(name: str, **parts: Any) -> dict[str, Any]:
    """A valid job of two stages; its pods wait for a scheduler that does not exist, so that nobody interferes."""
    worker = {"template": {"spec": {"schedulerName": "the-test"}}}
    spec = {**copy.deepcopy(SPEC), "worker": worker, **parts}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec}
