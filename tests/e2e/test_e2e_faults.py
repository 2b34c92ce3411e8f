"""What goes wrong while a job runs: it recovers with the very weights of a run in peace, or says the right reason."""

from __future__ import annotations

import copy

from disturbed import Steady
from harness.cluster import Cluster
from harness.processes import poll
from installation import Installation
from jobs import GONE_SECONDS, Jobs

CREATED, RUNNING = ("Normal", "Created"), ("Normal", "Running")
RESTARTING, SUCCEEDED = ("Warning", "Restarting"), ("Normal", "Succeeded")
IN_PEACE = [CREATED, RUNNING, SUCCEEDED]
ONE_RESTART = [CREATED, RUNNING, RESTARTING, CREATED, RUNNING, SUCCEEDED]


def test_a_killed_container_restarts_the_gang_from_its_checkpoint(
    cluster: Cluster, jobs: Jobs, steady: Steady
) -> None:
    name = jobs.apply(steady.manifest)
    jobs.until_checkpoint(name)
    victim = jobs.pods(name)[f"{name}-s1-a0"]
    container = victim["status"]["containerStatuses"][0]["containerID"]
    cluster.node(victim["spec"]["nodeName"]).kill_container(container)
    jobs.until("it is noticed", lambda: jobs.status(name)["restarts"] == 1, within_seconds=180)
    told = jobs.status(name)["lastFailure"]  # of the stage that was killed, not of its neighbour
    assert "stage 1" in told
    assert "exit code 137" in told
    steady.assert_ends_as_in_peace(jobs, restarts=1, failures=1)
    assert "Going on after epoch" in jobs.kubectl("logs", f"{name}-s0-a1")
    assert jobs.events(name) == ONE_RESTART


def test_a_deleted_pod_leaves_a_checkpoint_and_costs_no_failure(jobs: Jobs, steady: Steady) -> None:
    name = jobs.apply(steady.manifest)
    jobs.until_checkpoint(name)
    jobs.kubectl("delete", "pod", f"{name}-s0-a0", "--wait=false")
    jobs.until_phase(name, "Restarting", within_seconds=90)
    steady.assert_ends_as_in_peace(jobs, restarts=1)
    assert jobs.events(name) == ONE_RESTART


def test_a_killed_operator_takes_the_job_up_again_and_nothing_is_done_twice(
    installation: Installation, jobs: Jobs, steady: Steady
) -> None:
    name = jobs.apply(steady.manifest)
    jobs.until_checkpoint(name)
    installation.kill_operator()
    steady.assert_ends_as_in_peace(jobs, restarts=0)
    assert jobs.events(name) == IN_PEACE
    installation.await_operator()


def test_a_stage_that_dies_while_the_operator_is_dead_too_is_noticed(
    installation: Installation, cluster: Cluster, jobs: Jobs, steady: Steady
) -> None:
    name = jobs.apply(steady.manifest)
    jobs.until_checkpoint(name)
    victim = jobs.pods(name)[f"{name}-s0-a0"]
    container = victim["status"]["containerStatuses"][0]["containerID"]
    installation.kill_operator()
    cluster.node(victim["spec"]["nodeName"]).kill_container(container)
    steady.assert_ends_as_in_peace(jobs, restarts=1, failures=1)
    assert jobs.events(name) == ONE_RESTART


def test_training_goes_on_while_the_api_server_is_away(cluster: Cluster, jobs: Jobs, steady: Steady) -> None:
    name = jobs.apply(steady.manifest)
    saved = jobs.until_checkpoint(name)
    jobs.forgiven.append(r"kopf.*Request attempt #\d/9 failed; will retry")
    cluster.control_plane.stop_apiserver()
    try:
        newer = poll(lambda: jobs.newest_checkpoint(name) > saved + 10, 120)
    finally:
        cluster.control_plane.start_apiserver()
    assert newer, "no new checkpoint while the API server was away"
    steady.assert_ends_as_in_peace(jobs, restarts=0)
    assert jobs.events(name) == IN_PEACE


def test_an_image_that_does_not_exist_is_told_and_ends_at_the_deadline(jobs: Jobs, steady: Steady) -> None:
    manifest = copy.deepcopy(steady.manifest)
    manifest["spec"]["worker"] = {"image": "localhost/gnnpipe-trainer:absent"}
    manifest["spec"]["runPolicy"] = {"preRunningDeadlineSeconds": 25}
    name = jobs.apply(manifest)
    jobs.until("the reason is told", lambda: "absent" in (jobs.status(name).get("message") or ""), 90)
    assert jobs.condition(name, "Running")["reason"] == "ImagePullBackOff"
    jobs.until_phase(name, "Failed", within_seconds=180)
    failed = jobs.condition(name, "Failed")
    assert failed["reason"] == "PreRunningDeadlineExceeded"
    assert "localhost/gnnpipe-trainer:absent" in failed["message"]
    jobs.until("its pods are gone", lambda: not jobs.pods(name), GONE_SECONDS)
    assert jobs.events(name) == [CREATED, ("Warning", "ImagePullBackOff"), ("Warning", failed["reason"])]
