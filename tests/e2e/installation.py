"""GNNPipe installed on a real cluster with Helm: what an administrator has and does."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness import binaries
from harness.cluster import Cluster
from harness.kubectl import Kubectl
from project_images import PROJECT, TAG, repository

NAMESPACE = "gnnpipe-system"
RELEASE = "app.kubernetes.io/part-of=gnnpipe"
OPERATOR = "app.kubernetes.io/name=gnnpipe"


@dataclass(frozen=True)
class Installation:
    """The release `gnnpipe` on a cluster."""

    cluster: Cluster
    helm_home: Path

    @property
    def kubectl(self) -> Kubectl:
        return self.cluster.kubectl.inside(NAMESPACE)

    def install(self, **values: str) -> None:
        """By one Helm command, as docs/install.md says; returns when the operator is ready."""
        chosen = {
            "image.repository": repository("operator"),
            "image.tag": TAG,
            "trainerImage.repository": repository("trainer"),
            "trainerImage.tag": TAG,
            **values,
        }
        settings = [part for path, value in chosen.items() for part in ("--set", f"{path}={value}")]
        chart = str(PROJECT / "charts/gnnpipe")
        self.helm("upgrade", "--install", "--create-namespace", "gnnpipe", chart, *settings)
        self.await_operator()

    def helm(self, *arguments: str) -> str:
        homes = {f"HELM_{kind}_HOME": str(self.helm_home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        command = [
            binaries.find(["helm"])["helm"],
            *arguments,
            *("--kubeconfig", str(self.cluster.kubeconfig), "--namespace", NAMESPACE),
        ]
        done = subprocess.run(
            command, env={**os.environ, **homes}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def await_operator(self) -> None:
        self.kubectl("rollout", "status", "deployment/gnnpipe", "--timeout=120s", timeout_seconds=150)

    def operator_pod(self) -> dict[str, Any]:
        pods: list[dict[str, Any]] = self.kubectl.get("pods", "-l", OPERATOR)["items"]
        (living,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return living

    def kill_operator(self) -> None:
        """SIGKILL: no word to anybody, no Lease handed back."""
        pod = self.operator_pod()
        container = pod["status"]["containerStatuses"][0]["containerID"]
        self.cluster.node(pod["spec"]["nodeName"]).kill_container(container)

    def operator_log(self, since: datetime) -> str:
        """What the operator wrote, also in the life before its last restart."""
        pod = self.operator_pod()
        name, restarts = pod["metadata"]["name"], pod["status"]["containerStatuses"][0]["restartCount"]
        from_then = f"--since-time={since.strftime('%Y-%m-%dT%H:%M:%SZ')}"
        before = self.kubectl("logs", name, from_then, "--previous") if restarts else ""
        return before + self.kubectl("logs", name, from_then)

    def uninstall(self) -> None:
        """Nothing of the release stays but the definition, and that goes by a word of its own."""
        self.helm("uninstall", "gnnpipe", "--wait")
        kinds = "all,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,leases"
        ours = self.cluster.kubectl("get", kinds, "-A", "-l", RELEASE, "-o", "name").split()
        assert ours == [], f"helm uninstall left {ours}"
        self.cluster.kubectl("delete", "crd", "gnnpipejobs.gnnpipe.io")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=true")
