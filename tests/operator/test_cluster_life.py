"""The life of a job at a real API server. The operator is a process; pod states are played by the test."""

from __future__ import annotations

import json
from typing import Any

from gnnpipe_api.contract import ExitCode

CREATED, RUNNING, PLANNED = ("Normal", "Created"), ("Normal", "Running"), ("Normal", "Planned")


def test_a_job_is_created_runs_and_succeeds(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.until_phase("cora", "Pending")
    assert play.services() == ["cora"]
    play.run()
    play.until_phase("cora", "Running")
    result = {"epochs": 3, "loss": 0.25, "accuracy": {"train": 1.0, "val": 0.5, "test": 0.75}}
    play.end("cora-s0-a0", 0, json.dumps(result))
    play.end("cora-s1-a0", 0)
    play.until_phase("cora", "Succeeded")
    status = play.status("cora")
    assert (status["epoch"], status["loss"], status["accuracy"]["test"]) == (3, 0.25, 0.75)
    assert play.events("cora") == [CREATED, RUNNING, ("Normal", "Succeeded")]
    assert play.pods() == ["cora-s0-a0", "cora-s1-a0"]


def test_a_job_that_says_auto_is_planned_where_the_graph_is_before_any_stage_has_a_pod(
    play: Any, operator: Any
) -> None:
    play.apply("cora", parallelism={"stages": "auto", "ways": "auto", "chunks": "auto", "maxRanks": 3})
    play.until_pods("cora-plan-a0")
    play.until_phase("cora", "Pending")
    assert play.condition("cora", "Running")["reason"] == "Planning"
    assert play.services() == []
    play.run()
    play.plan("cora-plan-a0", stages=3)
    play.until_pods("cora-s0-a0", "cora-s1-a0", "cora-s2-a0")
    play.run()
    play.until_phase("cora", "Running")
    plan = play.status("cora")["plan"]
    assert (plan["stages"], plan["chunks"], plan["reason"]) == (3, 12, "It is the quickest.")
    play.end("cora-s1-a0", ExitCode.PREEMPTED)
    play.until_pods("cora-s0-a1", "cora-s1-a1", "cora-s2-a1")
    play.run()
    play.until_phase("cora", "Running")
    restarting = ("Warning", "Restarting")
    assert play.events("cora") == [PLANNED, CREATED, RUNNING, restarting, CREATED, RUNNING]


def test_a_graph_that_the_planner_finds_wrong_fails_the_job_before_any_stage_has_a_pod(
    play: Any, operator: Any
) -> None:
    play.apply("cora", parallelism={"stages": "auto"})
    play.until_pods("cora-plan-a0")
    play.run()
    play.end("cora-plan-a0", 2, "spec.graph.path: /data/x.npz has no train_mask")
    play.until_phase("cora", "Failed")
    assert play.condition("cora", "Failed")["reason"] == "InvalidData"
    assert "planning (pod cora-plan-a0): spec.graph.path" in play.status("cora")["message"]
    assert (play.pods(), play.services()) == (["cora-plan-a0"], [])
    assert play.events("cora") == [("Warning", "InvalidData")]


def test_one_dead_stage_stops_the_whole_gang_and_says_why(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    play.end("cora-s1-a0", 1, "Traceback ...\nRuntimeError: NaN in the loss")
    play.until_phase("cora", "Restarting", within=5)
    assert "exit code 1: RuntimeError: NaN in the loss" in play.status("cora")["message"]
    play.until_pods()
    status = play.status("cora")
    assert (status["attempt"], status["restarts"], status["failures"]) == (1, 1, 1)
    assert play.events("cora") == [CREATED, RUNNING, ("Warning", "Restarting")]


def test_wrong_data_fails_the_job_for_good_and_frees_the_other_stages(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    play.end("cora-s0-a0", 2, "spec.graph.path: /data/x.npz has no train_mask")
    play.until_phase("cora", "Failed")
    play.until_pods("cora-s0-a0")
    assert play.condition("cora", "Failed")["reason"] == "InvalidData"
    assert play.events("cora") == [CREATED, RUNNING, ("Warning", "InvalidData")]


def test_a_pod_that_somebody_deletes_restarts_the_gang_uncounted(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    play.end("cora-s1-a0", ExitCode.LOST_PEER)  # a moment before: its neighbour noticed first
    play.remove_pod("cora-s0-a0")
    play.until_pods("cora-s0-a1", "cora-s1-a1")
    play.run()
    play.until_phase("cora", "Running")
    status = play.status("cora")
    assert (status["attempt"], status["restarts"], status["failures"]) == (1, 1, 0)
    assert play.condition("cora", "Restarting")["status"] == "False"
    assert play.events("cora") == [CREATED, RUNNING, ("Warning", "Restarting"), CREATED, RUNNING]


def test_a_pod_that_cannot_pull_its_image_is_told_within_five_seconds(play: Any, operator: Any) -> None:
    play.apply("cora", runPolicy={"preRunningDeadlineSeconds": 3})
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.wait("cora-s1-a0", "ErrImagePull", "manifest for gnn:9 not found")
    play.until("the reason is told", lambda: "gnn:9 not found" in play.status("cora").get("message", ""), 5)
    play.until_phase("cora", "Failed", within=10)
    assert play.condition("cora", "Failed")["reason"] == "PreRunningDeadlineExceeded"
    play.until_pods()


def test_a_suspended_job_gives_its_pods_back_and_resumes_as_a_new_attempt(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    play.edit("cora", {"runPolicy": {"suspend": True}})
    play.until_phase("cora", "Suspended")
    play.until_pods()
    play.edit("cora", {"parallelism": {"stages": 4}})
    play.until("the new cut is accepted", lambda: play.status("cora")["plan"]["stages"] == 4)
    play.edit("cora", {"runPolicy": {"suspend": False}})
    play.until_pods(*(f"cora-s{stage}-a1" for stage in range(4)))
    play.run()
    play.until_phase("cora", "Running")
    events = [CREATED, RUNNING, ("Normal", "Suspended"), ("Normal", "Resumed"), CREATED, RUNNING]
    assert play.events("cora") == events
    assert play.status("cora")["restarts"] == 0


def test_an_active_deadline_ends_the_job_and_its_time_to_live_removes_it(play: Any, operator: Any) -> None:
    play.apply("cora", runPolicy={"activeDeadlineSeconds": 2, "ttlSecondsAfterFinished": 2})
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Failed", within=10)
    assert play.condition("cora", "Failed")["reason"] == "DeadlineExceeded"
    play.until("the job is gone", lambda: not play.jobs(), within=10)


def test_an_edit_that_cannot_take_effect_is_refused_in_an_event(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    play.edit("cora", {"training": {"epochs": 7}})
    play.until("the refusal is told", lambda: play.events("cora")[-1] == ("Warning", "EditRefused"))
    play.until("the edit is seen", lambda: play.status("cora")["observedGeneration"] == 2)  # after its Event
    assert play.phase("cora") == "Running"


def test_a_pod_template_that_the_api_server_refuses_fails_the_job_and_creates_nothing(
    play: Any, operator: Any
) -> None:
    template = {"spec": {"tolerations": [{"key": "a", "operator": "Sometimes"}]}}
    play.apply("cora", worker={"template": template})
    play.until_phase("cora", "Failed", within=5)
    assert play.condition("cora", "Failed")["reason"] == "InvalidSpec"
    assert "Sometimes" in play.status("cora")["message"]
    assert (play.pods(), play.services()) == ([], [])
    assert play.events("cora") == [("Warning", "InvalidSpec")]


def test_a_job_made_anew_under_its_old_name_waits_for_the_old_pods(play: Any, operator: Any) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.until_phase("cora", "Pending")
    play.delete("cora")
    uid = play.apply("cora")["metadata"]["uid"]

    def all_belong_to_the_new_job() -> bool:
        objects = [
            *play.core.list_namespaced_pod(play.namespace).items,
            *play.core.list_namespaced_service(play.namespace).items,
        ]
        return [o.metadata.owner_references[0].uid for o in objects] == [uid] * 3

    play.until("pods and Service are the new job's", all_belong_to_the_new_job, within=40)
    play.until_phase("cora", "Pending")


def test_an_operator_that_starts_late_picks_up_what_is_there(play: Any, make_operator: Any) -> None:
    play.apply("cora")
    first = make_operator().start()
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    first.kill()
    play.end("cora-s0-a0", 0)
    play.end("cora-s1-a0", 0)
    make_operator().start()
    play.until_phase("cora", "Succeeded")
    assert play.events("cora") == [CREATED, RUNNING, ("Normal", "Succeeded")]


def test_an_operator_without_a_namespace_serves_all_of_them(play: Any, make_operator: Any) -> None:
    make_operator(everywhere=True).start()
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0", within=60)
    play.run()
    play.until_phase("cora", "Running")


def test_a_quota_is_told_and_the_job_goes_on_when_there_is_room(play: Any, operator: Any) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    play.core.create_namespaced_resource_quota(play.namespace, quota)

    def in_force() -> bool:
        status = play.core.read_namespaced_resource_quota("none", play.namespace).status
        return bool(status and status.hard)

    play.until("the quota is in force", in_force)
    play.apply("cora")
    play.until("the refusal is told", lambda: "exceeded quota" in play.status("cora").get("message", ""))
    assert play.condition("cora", "Running")["reason"] == "PodRefused"
    assert (play.phase("cora"), play.services()) == ("Pending", [])
    play.core.delete_namespaced_resource_quota("none", play.namespace)
    play.until_pods("cora-s0-a0", "cora-s1-a0", within=30)


def test_two_operators_at_once_do_no_harm(play: Any, make_operator: Any) -> None:
    for _ in range(2):
        make_operator().start()
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0", within=60)
    play.until_phase("cora", "Pending")
    play.run()
    play.until_phase("cora", "Running")
    for pod in play.pods():
        play.end(pod, 0)
    play.until_phase("cora", "Succeeded")
    assert play.events("cora") == [CREATED, RUNNING, ("Normal", "Succeeded")]
    assert play.status("cora")["restarts"] == 0
