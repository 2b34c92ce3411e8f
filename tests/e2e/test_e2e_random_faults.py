"""Random faults in a row, all during one job: twenty, or as many as FAULTS says."""

from __future__ import annotations

import copy
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from disturbed import NAME, Steady
from harness.cluster import Cluster
from installation import Installation
from jobs import Jobs, is_running
from local_runs import Trained, assert_identical, run_locally

FAULTS = int(os.environ.get("FAULTS") or "20")
SEED = int(os.environ.get("SEED") or "0")
MOST_HARMLESS = FAULTS // 3  # the job trains on through these
MOST_API_RESTARTS = 2  # each takes half a minute; the job trains on, and its reference then as long again
NEVER = 1_000_000  # epochs: it must not be done before the last fault, however slow the machine
A_FEW = 20  # epochs after the last fault


class Fire:
    """Whoever breaks things, and counts. Every fault says whether it costs the job a restart."""

    def __init__(self, cluster: Cluster, installation: Installation, jobs: Jobs) -> None:
        self.cluster, self.installation, self.jobs = cluster, installation, jobs
        self.done: Counter[str] = Counter()
        self.restarts = 0

    def strike(self, dice: random.Random) -> None:
        faults = [self.delete_pod, self.delete_pod_at_once, self.kill_container]
        if self.done["kill_operator"] + self.done["restart_api_server"] < MOST_HARMLESS:
            faults += [self.kill_operator]
            if self.done["restart_api_server"] < MOST_API_RESTARTS:
                faults += [self.restart_api_server]
        fault = dice.choice(faults)
        self.done[fault.__name__] += 1
        self.restarts += fault(dice)

    def kill_container(self, dice: random.Random) -> bool:
        pod = self._pod(dice)
        container = pod["status"]["containerStatuses"][0]["containerID"]
        self.cluster.node(pod["spec"]["nodeName"]).kill_container(container)
        return True

    def delete_pod(self, dice: random.Random) -> bool:
        self.jobs.kubectl("delete", "pod", self._pod(dice)["metadata"]["name"], "--wait=false")
        return True

    def delete_pod_at_once(self, dice: random.Random) -> bool:
        name = self._pod(dice)["metadata"]["name"]
        self.jobs.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        return True

    def kill_operator(self, dice: random.Random) -> bool:
        """Its pod is deleted too, or the kubelet would pause longer and longer between its restarts."""
        pod = self.installation.operator_pod()["metadata"]["name"]
        self.installation.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
        return False

    def restart_api_server(self, dice: random.Random) -> bool:
        self.cluster.control_plane.restart_apiserver()
        return False

    def _pod(self, dice: random.Random) -> dict[str, object]:
        pods = self.jobs.alive(NAME)
        return pods[dice.choice(sorted(pods))]


def end_soon(jobs: Jobs) -> int:
    """Suspend the job and let it go on to an end that is near; returns how many epochs that makes in all."""
    edit(jobs, runPolicy={"suspend": True})
    jobs.until_phase(NAME, "Suspended", within_seconds=180)
    jobs.until("its pods have ended", lambda: not any(map(is_running, jobs.pods(NAME).values())), 180)
    epochs = jobs.newest_checkpoint(NAME) + 1 + A_FEW
    edit(jobs, runPolicy={"suspend": False}, training={"epochs": epochs})
    return epochs


def edit(jobs: Jobs, **spec: Any) -> None:
    jobs.kubectl("patch", "gpj", NAME, "--type=merge", "--patch", json.dumps({"spec": spec}))


def test_random_faults_in_a_row_leave_the_weights_as_they_would_have_been(
    cluster: Cluster, installation: Installation, jobs: Jobs, steady: Steady, tmp_path: Path
) -> None:
    manifest = copy.deepcopy(steady.manifest)
    manifest["spec"]["training"]["epochs"] = NEVER
    # A quick job may be struck again and again before the operator, which asks every five seconds, has seen it go on.
    manifest["spec"].setdefault("runPolicy", {})["backoffLimit"] = FAULTS
    jobs.forgiven.append(r"kopf.*Request attempt #\d/9 failed; will retry")
    fire, dice = Fire(cluster, installation, jobs), random.Random(SEED)
    jobs.apply(manifest)
    for _ in range(FAULTS):
        jobs.until_phase(NAME, "Running", within_seconds=400)
        saved = jobs.newest_checkpoint(NAME)
        jobs.until_checkpoint(NAME, beyond_epoch=saved + dice.randrange(10), within_seconds=240)
        fire.strike(dice)
        jobs.until("it is noticed", lambda: jobs.status(NAME)["restarts"] == fire.restarts, 180)
    manifest["spec"]["training"]["epochs"] = end_soon(jobs)
    status = jobs.until_phase(NAME, "Succeeded", within_seconds=400)
    told = f"{FAULTS} faults with seed {SEED}: {dict(fire.done)}"
    assert status["restarts"] == fire.restarts, told
    in_peace = run_locally(manifest, tmp_path / "here")
    assert_identical(Trained(jobs.out(NAME)), in_peace)
