"""The control plane that every other cluster test stands on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.controlplane import ControlPlane
from harness.kubectl import Kubectl, KubectlError
from harness.processes import poll, start_ticks

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "probes.harness.example"},
    "spec": {
        "group": "harness.example",
        "scope": "Namespaced",
        "names": {"plural": "probes", "singular": "probe", "kind": "Probe"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"stages": {"type": "integer", "minimum": 1}},
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def probe_crd(kubectl: Kubectl) -> None:
    kubectl.apply(CRD)
    kubectl("wait", "--for=condition=Established", "crd/probes.harness.example", "--timeout=20s")


def probe(name: str, stages: int) -> dict[str, object]:
    return {
        "apiVersion": "harness.example/v1",
        "kind": "Probe",
        "metadata": {"name": name},
        "spec": {"stages": stages},
    }


def test_the_server_reports_a_released_version(kubectl: Kubectl) -> None:
    version = json.loads(kubectl("version", "-o", "json"))["serverVersion"]
    assert int(version["minor"].rstrip("+")) >= 20
    assert "0.0.0" not in version["gitVersion"]


@pytest.mark.usefixtures("probe_crd")
def test_a_custom_resource_is_stored_and_comes_back_unchanged(kubectl: Kubectl, namespace: str) -> None:
    inside = kubectl.inside(namespace)
    inside.apply(probe("first", stages=4))
    assert inside.get("probe", "first")["spec"] == {"stages": 4}
    inside("delete", "probe", "first")


@pytest.mark.usefixtures("probe_crd")
def test_the_schema_of_a_custom_resource_is_enforced(kubectl: Kubectl, namespace: str) -> None:
    with pytest.raises(KubectlError, match="stages"):
        kubectl.inside(namespace).apply(probe("bad", stages=0))


def test_children_are_garbage_collected_with_their_owner(kubectl: Kubectl, namespace: str) -> None:
    inside = kubectl.inside(namespace)
    inside("create", "configmap", "owner")
    uid = inside.get("configmap", "owner")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    child = {"name": "child", "ownerReferences": [owner]}
    inside.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": child})
    inside("delete", "configmap", "owner")
    assert poll(lambda: "child" not in inside("get", "configmaps", "-o", "name"), 30, every=0.2)


@pytest.mark.cluster
@pytest.mark.usefixtures("control_plane")
def test_a_control_plane_stops_without_a_trace() -> None:
    with ControlPlane() as own:
        processes, folder = list(own.processes.values()), own.folder
        assert {each.name for each in processes} >= {"etcd", "kube-apiserver", "kube-controller-manager"}
        assert all(each.alive for each in processes)
        assert own.kubeconfig.is_file()
    assert [start_ticks(each.pid) for each in processes] == [None] * len(processes)
    assert not folder.exists()


@pytest.mark.cluster
@pytest.mark.usefixtures("control_plane")
def test_a_control_plane_is_up_after_15_seconds_of_work() -> None:
    # Processor time, not the clock: other tests share the cores.
    with ControlPlane() as own:
        seconds = {each.name: processor_seconds(each.pid) for each in own.processes.values()}
    assert sum(seconds.values()) < 15, seconds


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.cluster
@pytest.mark.usefixtures("control_plane")
def test_the_api_server_can_go_away_and_come_back_with_what_it_knew() -> None:
    with ControlPlane(scheduler=False) as own:
        own.kubectl("create", "configmap", "kept")
        own.stop_apiserver()
        with pytest.raises(KubectlError):
            own.kubectl("get", "configmaps", timeout_seconds=60)
        own.start_apiserver()
        assert "configmap/kept" in own.kubectl("get", "configmaps", "-o", "name")


@pytest.mark.cluster
@pytest.mark.usefixtures("control_plane")
def test_a_test_run_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    script = """
from harness.controlplane import ControlPlane
import json, sys
own = ControlPlane(scheduler=False).start()
print(json.dumps([each.pid for each in own.processes.values()]), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        pids = json.loads(run.stdout.readline())
        run.kill()
    assert len(pids) == 3
    assert poll(lambda: all(start_ticks(pid) is None for pid in pids), 10)
