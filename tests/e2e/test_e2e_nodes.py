"""Nodes and disks that go away under a running job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disturbed import NAME, Steady
from harness.cluster import Cluster
from jobs import CLAIM, JOB_LABEL, Jobs
from local_runs import Trained, assert_identical
from small_disk import SmallDisk

# Stages on different nodes where there is room, though the operator likes them side by side.
APART: dict[str, Any] = {
    "preferredDuringSchedulingIgnoredDuringExecution": 2
    * [
        {
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {JOB_LABEL: NAME}},
            },
        }
    ]
}
# Kubernetes waits five minutes for a lost node; nobody wants to watch that.
SOON = [
    {
        "key": f"node.kubernetes.io/{trouble}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 2,
    }
    for trouble in ("unreachable", "not-ready")
]


@pytest.fixture
def spread(steady: Steady) -> dict[str, Any]:
    """The steady job with one stage on each node."""
    return steady.with_template(
        affinity={"podAntiAffinity": APART}, tolerations=SOON, terminationGracePeriodSeconds=10
    )


def nodes_of(jobs: Jobs) -> dict[str, str]:
    """The node of each pod of the job."""
    return {name: pod["spec"].get("nodeName", "") for name, pod in jobs.pods(NAME).items()}


def test_stages_on_two_nodes_meet_and_a_lost_node_is_replaced(
    cluster: Cluster, jobs: Jobs, steady: Steady, spread: dict[str, Any]
) -> None:
    jobs.apply(spread)
    jobs.until_checkpoint(NAME)
    assert set(nodes_of(jobs).values()) == {"node-0", "node-1"}
    # The operator's node stays: what happens to a job whose operator is gone too is another test's business.
    operator = cluster.kubectl.get("pods", "-n", "gnnpipe-system")["items"][0]["spec"]["nodeName"]
    (lost,) = [node for node in cluster.nodes if node.name != operator]
    lost.kill()
    try:
        jobs.until_phase(NAME, "Succeeded", within_seconds=400)
        assert set(nodes_of(jobs).values()) == {operator}
    finally:
        lost.start()
    # The stage that is left ends first, of a lost connection; it is the node that is blamed all the same.
    steady.assert_ends_as_in_peace(jobs, restarts=1)


def test_a_drained_node_hands_its_stage_over(
    cluster: Cluster, jobs: Jobs, steady: Steady, spread: dict[str, Any]
) -> None:
    jobs.apply(spread)
    jobs.until_checkpoint(NAME)
    drained = nodes_of(jobs)[f"{NAME}-s1-a0"]
    try:
        cluster.kubectl("drain", drained, "--delete-emptydir-data", "--force", "--ignore-daemonsets")
        steady.assert_ends_as_in_peace(jobs, restarts=1)
        assert drained not in nodes_of(jobs).values()
    finally:
        cluster.kubectl("uncordon", drained)


@pytest.fixture
def small_disk(cluster: Cluster, jobs: Jobs) -> Iterator[SmallDisk]:
    """The volume of the job as a disk of few megabytes, on the first node."""
    disk = SmallDisk(cluster.nodes[0], jobs.volumes[CLAIM], megabytes=8)
    disk.mount()
    yield disk
    jobs.delete_all()
    jobs.until_gone()
    disk.unmount()


def test_a_full_disk_costs_checkpoints_but_not_the_training(
    jobs: Jobs, steady: Steady, small_disk: SmallDisk, tmp_path: Path
) -> None:
    jobs.apply(steady.with_template(nodeSelector={"kubernetes.io/hostname": small_disk.node.name}))
    jobs.until("a checkpoint", lambda: small_disk.lists(f"{NAME}/checkpoints/epoch-*"), 240)
    small_disk.fill()
    log = ("logs", f"{NAME}-s0-a0")
    jobs.until("it is told", lambda: "No space left on device" in jobs.kubectl(*log), 240)
    assert "training goes on" in jobs.kubectl(*log)
    small_disk.free()
    status = jobs.until_phase(NAME, "Succeeded", within_seconds=400)
    assert status["restarts"] == 0
    small_disk.copy(NAME, tmp_path / "out")
    assert_identical(Trained(tmp_path / "out"), steady.in_peace)
