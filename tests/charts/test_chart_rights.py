"""The operator with the rights that the chart gives it, and no others: enough, and nothing to spare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.controlplane import ControlPlane
from harness.forkserver import ForkServer
from harness.kubectl import Kubectl
from harness.processes import Process, poll
from rendered_chart import Helm

pytestmark = pytest.mark.cluster

SECONDS = 60
JOB = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "metadata": {"name": "job"},
    "spec": {
        "graph": {"source": "synthetic"},
        "model": {"kind": "gcn", "layers": 2, "hidden": 8},
        "parallelism": {"stages": 2},
        # It can never run here, so it fails, is cleaned up and deleted: a whole life, and every right is used.
        "runPolicy": {"preRunningDeadlineSeconds": 3, "ttlSecondsAfterFinished": 1, "cleanPods": "All"},
    },
}

# Objects of the job's names that are not the job's: the operator looks whose they are before it gives up.
FOREIGN: dict[str, dict[str, Any]] = {
    "pods": {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job-s0-a0"},
        "spec": {"containers": [{"name": "other", "image": "other"}]},
    },
    "services": {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "job"},
        "spec": {"clusterIP": "None", "selector": {"other": "true"}},
    },
}


class Right(NamedTuple):
    group: str
    resource: str
    verb: str

    @property
    def complaint(self) -> str:
        """How the API server refuses it."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'


@pytest.fixture(scope="module")
def rights(chart_cluster: ControlPlane, helm: Helm) -> Iterator[set[Right]]:
    """What the chart grants in namespaced mode, its definition installed."""
    chart = helm.render({"watchNamespace": "anywhere"}, kube="1.20.2", apis=())
    chart_cluster.kubectl.apply(chart.one("CustomResourceDefinition"))
    chart_cluster.kubectl("wait", "--for=condition=Established", "crd/gnnpipejobs.gnnpipe.io")
    yield {
        Right(rule["apiGroups"][0], resource, verb)
        for role in chart.all("Role")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    chart_cluster.kubectl("delete", "crd", "--all", "--wait=true")


@pytest.fixture
def operators(
    chart_cluster: ControlPlane, operator_program: ForkServer, tmp_path: Path
) -> Iterator[Callable[[str, set[Right]], Process]]:
    """`operators(namespace, rights)`: starts an operator for that new namespace with these rights and no others."""
    started: list[Process] = []

    def call(namespace: str, granted: set[Right]) -> Process:
        objects = {"apiVersion": "v1", "kind": "List", "items": namespace_with(namespace, granted)}
        chart_cluster.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
        token = chart_cluster.kubectl.inside(namespace)("create", "token", "operator").strip()
        folder = tmp_path / namespace
        folder.mkdir()
        flags = [f"--namespace={namespace}", "--leader-elect", "--metrics-port=0", "--probe-port=0"]
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig(chart_cluster, token, folder)),
            "POD_NAMESPACE": namespace,
            "POD_NAME": "here",
        }
        started.append(operator_program.start("operator", flags, folder, environment))
        return started[-1]

    yield call
    for process in started:
        process.stop(grace_seconds=0)


def namespace_with(namespace: str, granted: set[Right]) -> list[dict[str, Any]]:
    """A namespace, and in it an account `operator` with these rights."""
    place = {"name": "operator", "namespace": namespace}
    rules = [{"apiGroups": [r.group], "resources": [r.resource], "verbs": [r.verb]} for r in sorted(granted)]
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "Role", "name": "operator"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": place, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": place,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **place}],
        },
    ]


def kubeconfig(chart_cluster: ControlPlane, token: str, folder: Path) -> Path:
    """The administrator's kubeconfig with the token in place of the certificate."""
    path = folder / "kubeconfig"
    settings = json.loads(chart_cluster.kubectl("config", "view", "--raw", "-o", "json"))
    for user in settings["users"]:
        user["user"] = {"token": token}
    path.touch(mode=0o600)
    path.write_text(json.dumps(settings))
    return path


def job_is_gone(kubectl: Kubectl) -> bool:
    return kubectl("get", "gnnpipejobs", "-o", "name") == ""


def test_the_rights_are_enough_for_a_jobs_whole_life(
    chart_cluster: ControlPlane, rights: set[Right], operators: Callable[[str, set[Right]], Process]
) -> None:
    operator = operators("whole", rights)
    inside = chart_cluster.kubectl.inside("whole")
    inside.apply(JOB)
    gone = poll(lambda: job_is_gone(inside), SECONDS, every=0.3)
    assert gone, operator.log_tail()
    told = {event["reason"] for event in inside.get("events")["items"]}
    assert told >= {"Created", "PreRunningDeadlineExceeded"}
    assert "forbidden" not in operator.log.read_text().lower()


def test_each_right_that_is_taken_away_is_missed(
    chart_cluster: ControlPlane, rights: set[Right], operators: Callable[[str, set[Right]], Process]
) -> None:
    without: dict[Right, Process] = {}
    for number, right in enumerate(sorted(rights)):
        namespace = f"without-{number}"
        without[right] = operators(namespace, rights - {right})
        if right.verb == "get" and right.resource in FOREIGN:
            chart_cluster.kubectl.inside(namespace).apply(FOREIGN[right.resource])
        chart_cluster.kubectl.inside(namespace).apply(JOB)

    def unmissed() -> list[Right]:
        return [
            right for right, operator in without.items() if right.complaint not in operator.log.read_text()
        ]

    poll(lambda: not unmissed(), 2 * SECONDS, every=0.5)
    assert unmissed() == [], "granted by the chart, but the operator does without"
