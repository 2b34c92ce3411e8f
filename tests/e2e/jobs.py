"""Jobs in one namespace of a real cluster: what a person applies, sees and finds on the volume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness.controlplane import ControlPlane
from harness.kubectl import Kubectl, KubectlError

JOB_LABEL = "gnnpipe.io/job"
CLAIM, GRAPHS = "checkpoints", "graphs"  # the claims that examples name
LOOK_EVERY_SECONDS = 0.3
GONE_SECONDS = 180  # a pod is gone when its sandbox is, and this kubelet clears those away once a minute


@dataclass
class Jobs:
    """`volumes` are the folders behind the claims, as this machine sees them.

    What is looked at again and again is asked of the API server itself: a kubectl costs half a second of processor.
    """

    kubectl: Kubectl
    control_plane: ControlPlane
    volumes: dict[str, Path]
    forgiven: list[str] = field(
        default_factory=list
    )  # patterns: errors in the operator's log that a test causes

    def apply(self, manifest: dict[str, Any]) -> str:
        self.kubectl.apply(manifest)
        name: str = manifest["metadata"]["name"]
        return name

    def get(self, name: str) -> dict[str, Any]:
        return self._ask(f"/apis/gnnpipe.io/v1alpha1/namespaces/{self.kubectl.namespace}/gnnpipejobs/{name}")

    def status(self, name: str) -> dict[str, Any]:
        return self.get(name).get("status") or {}

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        return next(each for each in self.status(name)["conditions"] if each["type"] == kind)

    def pods(self, name: str) -> dict[str, dict[str, Any]]:
        listed = self._ask(f"{self._core}/pods?labelSelector={JOB_LABEL}%3D{name}")["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    def alive(self, name: str) -> dict[str, dict[str, Any]]:
        """Those whose container runs and that nobody has deleted: a past attempt's stay for up to a minute."""
        return {
            pod_name: pod
            for pod_name, pod in self.pods(name).items()
            if "deletionTimestamp" not in pod["metadata"] and is_running(pod)
        }

    def events(self, name: str) -> list[tuple[str, str]]:
        """(type, reason) of the job's Events, oldest first.

        Without Unschedulable: a claim that was bound a moment ago may still be news to the scheduler.
        """
        selector = f"--field-selector=involvedObject.name={name},involvedObject.kind=GNNPipeJob"
        listed = self.kubectl.get("events", selector)["items"]
        listed.sort(key=lambda event: (event["firstTimestamp"], int(event["metadata"]["resourceVersion"])))
        return [(each["type"], each["reason"]) for each in listed if each["reason"] != "Unschedulable"]

    def row(self, name: str) -> dict[str, str]:
        """The job's line of `kubectl get gpj`, by column."""
        lines = self.kubectl("get", "gpj", name).splitlines()
        return dict(zip(lines[0].split(), lines[1].split(), strict=True))

    def out(self, name: str) -> Path:
        """Where the job leaves result.json, model.pt and its checkpoints."""
        return self.volumes[CLAIM] / name

    def until(self, what: str, condition: Callable[[], Any], within_seconds: float) -> None:
        deadline = time.monotonic() + within_seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within_seconds:.0f} s: {what}\n{self.picture()}")
            time.sleep(LOOK_EVERY_SECONDS)

    def until_phase(self, name: str, phase: str, within_seconds: float = 240) -> dict[str, Any]:
        """Waits for the phase; a job that ended in another one ends the waiting too."""
        ends = {phase, "Failed", "Succeeded"}
        self.until(f"{name} is {phase}", lambda: self.status(name).get("phase") in ends, within_seconds)
        status = self.status(name)
        assert status["phase"] == phase, f"{name} is {status['phase']}, not {phase}\n{self.picture()}"
        return status

    def until_checkpoint(self, name: str, beyond_epoch: int = -1, within_seconds: float = 240) -> int:
        """Waits for a whole checkpoint of a later epoch; returns its epoch."""
        self.until(
            f"{name} has a checkpoint after epoch {beyond_epoch}",
            lambda: self.newest_checkpoint(name) > beyond_epoch or self.ended(name),
            within_seconds,
        )
        assert not self.ended(name), f"{name} ended before it could be disturbed\n{self.picture()}"
        return self.newest_checkpoint(name)

    def newest_checkpoint(self, name: str) -> int:
        """The epoch of the newest whole checkpoint; -1 where there is none."""
        whole = [each.parent.name for each in self.out(name).glob("checkpoints/epoch-*/manifest.json")]
        epochs = [int(folder.removeprefix("epoch-")) for folder in whole if not folder.endswith(".new")]
        return max(epochs, default=-1)

    def ended(self, name: str) -> bool:
        return self.status(name).get("phase") in ("Succeeded", "Failed")

    def delete_all(self) -> None:
        self.kubectl("delete", "gpj", "--all", "--wait=true")

    def until_gone(self) -> None:
        """After `delete_all`: waits until the garbage collector and the kubelets have taken everything away."""
        self.until("the garbage collector took the pods", lambda: not self._owned(), GONE_SECONDS)

    def picture(self) -> str:
        """What a person would look at when a job does not do what it should."""
        parts = [self._try("get", "gpj,pods", "-o", "wide"), self._try("get", "events")]
        for pod in self._try("get", "pods", "-o", "name").split():
            parts.append(f"--- {pod}\n{self._try('logs', pod, '--tail=15')}")
        jobs = self.kubectl.get("gpj")["items"]
        parts += [json.dumps(job.get("status"), indent=1) for job in jobs]
        return "\n".join(parts)

    def _owned(self) -> list[dict[str, Any]]:
        return [item for kind in ("pods", "services") for item in self._ask(f"{self._core}/{kind}")["items"]]

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self.kubectl.namespace}"

    def _ask(self, path: str) -> dict[str, Any]:
        return self.control_plane.request("GET", path)

    def _try(self, *arguments: str) -> str:
        try:
            return self.kubectl(*arguments)
        except KubectlError as error:
            return str(error)


def is_running(pod: dict[str, Any]) -> bool:
    return any("running" in each["state"] for each in pod["status"].get("containerStatuses") or [])
