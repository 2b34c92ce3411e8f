"""The chart's life on a real API server: install, upgrade, roll back, uninstall, install again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.controlplane import ControlPlane
from harness.kubectl import Kubectl, KubectlError
from harness.processes import poll
from rendered_chart import CHART, Helm

pytestmark = pytest.mark.cluster

NAMESPACE = "gnnpipe-system"
DEFINITION = "gnnpipejobs.gnnpipe.io"
OURS = "app.kubernetes.io/part-of=gnnpipe"
KINDS = (
    "deployments,services,serviceaccounts,configmaps,networkpolicies,poddisruptionbudgets,"
    "roles,rolebindings,clusterroles,clusterrolebindings"
)


@dataclass(frozen=True)
class Release:
    """The release `gnnpipe` in a cluster: what a person types."""

    helm: Helm
    kubectl: Kubectl

    def run(self, *arguments: str) -> str:
        done = self.helm(*arguments, "--kubeconfig", str(self.kubectl.kubeconfig), "--namespace", NAMESPACE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, chart: Path = CHART, **values: str) -> str:
        """Install or upgrade; no node is there to run the operator, so nothing is waited for."""
        chosen = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
        return self.run("upgrade", "--install", "--create-namespace", "gnnpipe", str(chart), *chosen)

    def objects(self) -> set[str]:
        return set(self.kubectl("get", KINDS, "-A", "-l", OURS, "-o", "name").split())

    def short_names(self) -> list[str]:
        names: list[str] = self.kubectl.get("crd", DEFINITION)["spec"]["names"]["shortNames"]
        return names

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether the operator's service account may do that; `resource` may be `pods/exec`."""
        kind, _, part = resource.partition("/")
        account = f"--as=system:serviceaccount:{NAMESPACE}:gnnpipe"
        try:
            answer = self.kubectl(
                "auth", "can-i", verb, kind, f"--subresource={part}", account, "-n", namespace
            )
            return answer.startswith("yes")
        except KubectlError:
            return False


@pytest.fixture
def release(helm: Helm, chart_cluster: ControlPlane) -> Iterator[Release]:
    made = Release(helm, chart_cluster.kubectl)
    yield made
    if "gnnpipe" in made.run("list", "--short"):
        made.run("uninstall", "gnnpipe")
    made.kubectl("delete", "crd", "--all", "--wait=true")
    gone = poll(lambda: made.objects() == set(), 30, every=0.3)
    assert gone, f"left behind: {made.objects()}"


@pytest.fixture
def last_version(tmp_path: Path) -> Path:
    """The chart as it might have been before: an older version whose definition had another short name."""
    older = tmp_path / "gnnpipe"
    shutil.copytree(CHART, older)
    described = yaml.safe_load((older / "Chart.yaml").read_text())
    (older / "Chart.yaml").write_text(yaml.safe_dump(described | {"version": "0.0.1", "appVersion": "0.0.1"}))
    for path in (older / "files").glob("crd*.yaml"):
        definition: dict[str, Any] = yaml.safe_load(path.read_text())
        definition["spec"]["names"]["shortNames"] = ["older"]
        path.write_text(yaml.safe_dump(definition))
    return older


def test_an_upgrade_takes_the_definition_along_and_a_rollback_takes_it_back(
    release: Release, last_version: Path
) -> None:
    release.install(last_version)
    assert release.short_names() == ["older"]
    release.install()
    assert release.short_names() == ["gpj"]
    deployment = release.kubectl.inside(NAMESPACE).get("deployment", "gnnpipe")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "gnnpipe-operator:0.1.0"
    release.run("rollback", "gnnpipe", "1")
    assert release.short_names() == ["older"]


def test_uninstall_leaves_the_definition_with_its_jobs_and_nothing_else(release: Release) -> None:
    release.install(replicas="2")
    jobs = release.kubectl.inside("default")
    jobs.apply(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "kept"},
            "spec": {"graph": {"source": "synthetic"}, "model": {"kind": "gcn", "layers": 2, "hidden": 8}},
        }
    )
    release.run("uninstall", "gnnpipe", "--wait")
    assert poll(lambda: release.objects() == set(), 30, every=0.3), release.objects()
    assert jobs("get", "gpj", "-o", "name").split() == ["gnnpipejob.gnnpipe.io/kept"]
    release.install()  # and takes up what it left
    assert jobs("get", "gpj", "-o", "name").split() == ["gnnpipejob.gnnpipe.io/kept"]


def test_the_operators_account_can_run_jobs_everywhere_and_read_secrets_nowhere(release: Release) -> None:
    release.install()
    for namespace in ("default", NAMESPACE):
        assert release.may("create", "pods", namespace)
        assert release.may("patch", "gnnpipejobs.gnnpipe.io/status", namespace)
        assert not release.may("get", "secrets", namespace)
        assert not release.may("create", "pods/exec", namespace)
    assert release.may("create", "leases.coordination.k8s.io", NAMESPACE)
    assert not release.may("create", "leases.coordination.k8s.io", "default")


def test_in_namespaced_mode_the_account_can_do_nothing_elsewhere(release: Release) -> None:
    release.install(watchNamespace="default")
    assert release.may("create", "pods", "default")
    assert not release.may("create", "pods", NAMESPACE)
    assert not release.may("list", "gnnpipejobs.gnnpipe.io", "kube-system")
    assert not any(name.startswith("clusterrole") for name in release.objects())


def test_monitors_come_with_the_first_upgrade_after_the_cluster_learnt_of_them(release: Release) -> None:
    assert "no ServiceMonitor" in release.install()
    kinds = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
    for kind in kinds:
        release.kubectl.apply(monitoring_definition(kind))
        release.kubectl("wait", "--for=condition=Established", f"crd/{kind.lower()}s.monitoring.coreos.com")
    assert "no ServiceMonitor" not in release.install()
    made = release.kubectl("get", ",".join(f"{kind.lower()}s" for kind in kinds), "-A", "-o", "name").split()
    assert {name.split(".")[0] for name in made} == {kind.lower() for kind in kinds}


def monitoring_definition(kind: str) -> dict[str, Any]:
    """Enough of the Prometheus operator's definition for the API server to take objects of the kind."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": f"{kind.lower()}s"},
            "versions": [version],
        },
    }
