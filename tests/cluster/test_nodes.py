"""Nodes that run real containers. All of these need root; `make test` leaves them to `make e2e`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.archive import BUSYBOX_IMAGE
from harness.cluster import Cluster
from harness.images import build_image
from harness.kubectl import Kubectl
from harness.processes import poll, start_ticks


@pytest.fixture
def inside(cluster: Cluster, node_namespace: str) -> Iterator[Kubectl]:
    """kubectl in a fresh namespace, which the test may leave full: it is emptied here."""
    inside = cluster.kubectl.inside(node_namespace)
    yield inside
    inside("delete", "pods,services", "--all", "--grace-period=0", "--force")


def pod(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", script]}
    container |= spec.pop("container", {})
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **spec,
        },
    }


def await_phase(kubectl: Kubectl, name: str, phase: str) -> None:
    kubectl("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"pod/{name}", "--timeout=60s")


def test_a_pod_runs_to_completion_and_its_log_can_be_read(inside: Kubectl) -> None:
    inside.apply(pod("hello", "echo hello from a container"))
    await_phase(inside, "hello", "Succeeded")
    assert inside("logs", "hello").strip() == "hello from a container"


def test_a_pod_runs_under_the_rules_of_the_restricted_profile(inside: Kubectl) -> None:
    restricted = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    script = "id -u; (echo x > /file) 2>/dev/null || echo refused"
    inside.apply(pod("restricted", script, container={"securityContext": restricted}))
    await_phase(inside, "restricted", "Succeeded")
    assert inside("logs", "restricted").split() == ["1000", "refused"]


def test_pods_find_each_other_by_name_before_they_are_ready(inside: Kubectl, node_namespace: str) -> None:
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job": "ring"}}
    inside.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ring"}, "spec": service})
    never_ready = {"readinessProbe": {"exec": {"command": ["/bin/cat", "/absent"]}}}
    place = {"hostname": "stage-0", "subdomain": "ring", "labels": {"job": "ring"}}
    inside.apply(pod("first", "sleep 1000", container=never_ready, **place))
    name = f"stage-0.ring.{node_namespace}.svc.cluster.local"
    inside.apply(pod("second", f"until nslookup {name}; do sleep 0.2; done"))
    await_phase(inside, "second", "Succeeded")
    address = inside.get("pod", "first")["status"]["podIP"]
    assert address in inside("logs", "second")
    assert inside.get("pod", "first")["status"]["containerStatuses"][0]["ready"] is False


def test_a_pod_reaches_the_api_server_at_its_service_address_and_nothing_outside(inside: Kubectl) -> None:
    script = """
        nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null && echo api
        nslookup example.com >/dev/null || echo no other names
        nc -w 2 203.0.113.1 80 </dev/null 2>/dev/null || echo no way out"""
    inside.apply(pod("caller", script))
    await_phase(inside, "caller", "Succeeded")
    assert inside("logs", "caller").splitlines() == ["api", "no other names", "no way out"]


def test_gpus_are_counted(inside: Kubectl) -> None:
    for name, gpus in (("fits", 8), ("too-big", 9)):
        limits = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
        inside.apply(pod(name, "echo done", container=limits))
    await_phase(inside, "fits", "Succeeded")
    inside("wait", "--for=condition=PodScheduled=false", "pod/too-big", "--timeout=20s")
    conditions = inside.get("pod", "too-big")["status"]["conditions"]
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]


def test_a_killed_container_fails_its_pod_with_exit_code_137(cluster: Cluster, inside: Kubectl) -> None:
    inside.apply(pod("victim", "sleep 1000"))
    await_phase(inside, "victim", "Running")
    found = inside.get("pod", "victim")
    node = cluster.node(found["spec"]["nodeName"])
    node.kill_container(found["status"]["containerStatuses"][0]["containerID"])
    await_phase(inside, "victim", "Failed")
    state = inside.get("pod", "victim")["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 137


def test_a_lost_node_is_noticed_and_comes_back(cluster: Cluster, inside: Kubectl) -> None:
    lost, other = cluster.nodes[1], cluster.nodes[0]
    inside.apply(pod("resident", "sleep 1000", nodeName=lost.name))
    await_phase(inside, "resident", "Running")
    lost.kill()
    try:
        cluster.kubectl("wait", "--for=condition=Ready=Unknown", f"node/{lost.name}", "--timeout=60s")
        cluster.kubectl("wait", "--for=condition=Ready", f"node/{other.name}", "--timeout=1s")
    finally:
        lost.start()
    inside.apply(pod("newcomer", "echo back", nodeName=lost.name))
    await_phase(inside, "newcomer", "Succeeded")


def test_an_image_is_built_once_and_runs_on_a_node(
    cluster: Cluster, node_namespace: str, tmp_path: Path
) -> None:
    dockerfile, tag = tmp_path / "hello.Dockerfile", "localhost/gnnpipe-hello:test"
    copied = tmp_path / "hello.py"
    copied.write_text("print('hello from', __file__)")
    dockerfile.write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY hello.py /hello.py\nUSER 65532\n")
    archive = build_image(dockerfile, tag, context=tmp_path, inputs=[copied])
    written = archive.stat().st_mtime_ns
    assert build_image(dockerfile, tag, context=tmp_path, inputs=[copied]).stat().st_mtime_ns == written

    cluster.import_image(archive)
    archive.unlink()
    inside = cluster.kubectl.inside(node_namespace)
    inside("run", "hello", f"--image={tag}", "--restart=Never", "--command", "--", "python3", "/hello.py")
    inside("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hello", "--timeout=60s")
    assert inside("logs", "hello") == "hello from /hello.py\n"
    inside("delete", "pod", "hello", "--grace-period=0", "--force")


@pytest.mark.nodes
@pytest.mark.usefixtures("cluster")
def test_a_cluster_stops_without_a_trace() -> None:
    with Cluster(nodes=1) as own:
        own.kubectl.apply(pod("left-running", "sleep 1000"))
        await_phase(own.kubectl, "left-running", "Running")
        inner = [int(each.split()[1]) for each in own.nodes[0].ctr("tasks", "list").splitlines()[1:]]
        shims = subprocess.run(
            ["pgrep", "-f", str(own.nodes[0].folder)], capture_output=True, text=True, check=True
        )
        pids = [*map(int, shims.stdout.split()), *(each.pid for each in own.processes)]
        assert len(inner) == 2  # the pause container and the sleeper
        folder, name = own.control_plane.folder, own.network.name
    assert [pid for pid in pids if start_ticks(pid) is not None] == []
    assert not folder.exists()
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert poll(lambda: name not in subprocess.check_output(["ip", "-brief", "link"], text=True), 5)
    assert not Path(f"/run/netns/{name}").exists()
