"""Pods, Service and PodGroups as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gnnpipe_api import contract
from gnnpipe_api.load import parse_job
from gnnpipe_api.status import JobStatus, PlanStatus
from gnnpipe_operator.build_planner import build_planner
from gnnpipe_operator.build_pod import build_pod
from gnnpipe_operator.build_podgroup import build_podgroup
from gnnpipe_operator.build_service import build_service
from gnnpipe_operator.edits import accept
from gnnpipe_operator.merge import merge
from gnnpipe_operator.observed import observe_pod


def spec_with(**parts: Any) -> dict[str, Any]:
    base = {
        "graph": {"source": "synthetic"},
        "model": {"kind": "gcn", "layers": 8},
        "parallelism": {"stages": 4},
    }
    return {**base, **parts}


@pytest.fixture
def pod_of(make_job: Any) -> Any:
    def build(stage: int = 1, attempt: int = 2, plan: Any = None, **parts: Any) -> dict[str, Any]:
        spec = spec_with(**parts)
        job = make_job(spec=spec, generation=7, status=JobStatus(accepted_spec=spec, plan=plan))
        accepted = accept(job, stopped=True).accepted
        assert accepted is not None
        return build_pod(job, accepted, stage, attempt, image="gnnpipe-trainer:test")

    return build


@pytest.fixture
def planner_of(make_job: Any) -> Any:
    """The pod that plans a job of which everything is auto."""

    def build(**parts: Any) -> dict[str, Any]:
        auto = {"stages": "auto", "ways": "auto", "chunks": "auto"}
        job = make_job(spec=spec_with(**{"parallelism": auto, **parts}), generation=7)
        accepted = accept(job, stopped=True).accepted
        assert accepted is not None
        return build_planner(job, accepted, attempt=2, image="gnnpipe-trainer:test")

    return build


def trainer(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] == contract.TRAINER_CONTAINER)


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in trainer(pod)["env"]}


def as_stored(pod: dict[str, Any]) -> dict[str, Any]:
    """As the API server gives it back."""
    stamps = {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T12:00:00Z"}
    return {**pod, "metadata": {**pod["metadata"], **stamps}}


def mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return {mount["mountPath"]: {**volumes[mount["name"]], **mount} for mount in trainer(pod)["volumeMounts"]}


def test_a_pod_says_whose_it_is_which_stage_and_which_attempt(pod_of: Any) -> None:
    metadata = pod_of()["metadata"]
    assert metadata["name"] == "cora-s1-a2"
    assert metadata["labels"]["gnnpipe.io/job"] == "cora"
    assert metadata["labels"]["gnnpipe.io/stage"] == "1"
    assert metadata["labels"]["gnnpipe.io/attempt"] == "2"
    assert [(o["uid"], o["controller"]) for o in metadata["ownerReferences"]] == [("job-uid", True)]


def test_the_manifest_in_the_pod_is_valid_and_leaves_nothing_to_auto(pod_of: Any) -> None:
    plan = PlanStatus(stages=2, ways=3, chunks=12, layers_per_stage=[4, 4])
    pod = pod_of(parallelism={"stages": "auto", "ways": "auto", "maxRanks": 6}, plan=plan)
    job = parse_job(json.loads(env(pod)[contract.ENV_MANIFEST]))
    cut = job.spec.parallelism
    assert (job.name, cut.stages, cut.ways, cut.chunks) == ("cora", 2, 3, 12)
    assert trainer(pod)["resources"]["limits"] == {"nvidia.com/gpu": 3}


def test_a_pod_is_told_only_what_an_older_image_knows_too(pod_of: Any, planner_of: Any) -> None:
    asked = {"stages": 2, "ways": 1, "chunks": 8, "history": {"decay": 0.8}}
    for pod in (pod_of(parallelism=asked), planner_of(parallelism=asked)):
        spec = json.loads(env(pod)[contract.ENV_MANIFEST])["spec"]
        assert spec["parallelism"] == {key: asked[key] for key in spec["parallelism"]}
        assert spec["parallelism"]["history"] == {"decay": 0.8}
        assert "training" not in spec  # what is as every version has it


def test_the_pod_that_plans_is_no_stage(planner_of: Any) -> None:
    pod = planner_of(runPolicy={"scheduling": {"gang": "volcano"}})
    assert pod["metadata"]["name"] == "cora-plan-a2"
    assert pod["metadata"]["labels"]["gnnpipe.io/stage"] == "plan"
    assert observe_pod(as_stored(pod)).plans
    assert trainer(pod)["command"] == ["gnnpipe", "planner"]
    assert parse_job(json.loads(env(pod)[contract.ENV_MANIFEST])).spec.parallelism.has_auto
    assert not {contract.ENV_STAGE, contract.ENV_MASTER_ADDR, contract.ENV_OUT} & env(pod).keys()
    assert "ports" not in trainer(pod)  # nothing to scrape
    assert not {"hostname", "subdomain", "schedulerName", "affinity"} & pod["spec"].keys()


def test_the_pod_that_plans_sees_what_a_stage_sees_but_asks_for_no_gpu(planner_of: Any, pod_of: Any) -> None:
    parts = {
        "graph": {
            "source": "npz",
            "path": "/data/x.npz",
            "volume": {"persistentVolumeClaim": {"claimName": "graphs"}, "mountPath": "/data"},
        },
        "model": {"kind": "mine:blocks", "layers": 8, "code": {"configMap": "my-model"}},
        "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "runs"}}},
        "worker": {
            "resources": {"requests": {"memory": "8Gi"}},
            "network": "rdma",
            "template": {"spec": {"nodeSelector": {"disk": "fast"}}},
        },
    }
    planner, stage = planner_of(**parts), pod_of(**parts)
    assert trainer(planner)["resources"] == {"requests": {"memory": "8Gi"}, "limits": {}}
    assert mounts(planner).keys() == mounts(stage).keys() - {contract.SHM_MOUNT, contract.OUT_MOUNT}
    assert mounts(planner)["/data"] == mounts(stage)["/data"]
    assert env(planner)["PYTHONPATH"] == contract.CODE_MOUNT
    assert planner["spec"]["nodeSelector"] == {"disk": "fast"}
    assert planner["spec"]["securityContext"] == stage["spec"]["securityContext"]
    assert planner["spec"]["automountServiceAccountToken"] is False
    assert trainer(planner)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert planner["metadata"]["ownerReferences"] == stage["metadata"]["ownerReferences"]


def test_the_pod_that_plans_waits_in_kueues_queue_but_in_no_group(planner_of: Any) -> None:
    labels = planner_of(runPolicy={"scheduling": {"gang": "kueue", "queue": "q"}})["metadata"]["labels"]
    assert {key for key in labels if "kueue" in key} == {"kueue.x-k8s.io/queue-name"}


def test_every_stage_meets_at_the_first_stages_name(pod_of: Any) -> None:
    assert env(pod_of(stage=3))[contract.ENV_MASTER_ADDR] == "cora-s0-a2.cora.team.svc"
    assert pod_of(stage=0)["spec"]["hostname"] == "cora-s0-a2"
    assert pod_of(stage=0)["spec"]["subdomain"] == "cora"
    assert env(pod_of(parallelism={"stages": 1}))[contract.ENV_MASTER_ADDR] == "127.0.0.1"


@pytest.mark.parametrize(
    ("parts", "gpus"),
    [
        ({"parallelism": {"stages": 2, "ways": 4}}, {"nvidia.com/gpu": 4}),
        ({"worker": {"gpuResource": "amd.com/gpu"}}, {"amd.com/gpu": 1}),
        ({"training": {"device": "cpu"}}, {}),
        ({"training": {"device": "cpu"}, "worker": {"network": "efa"}}, {"vpc.amazonaws.com/efa": "1"}),
    ],
)
def test_a_pod_asks_for_one_gpu_per_way(pod_of: Any, parts: dict[str, Any], gpus: dict[str, Any]) -> None:
    assert trainer(pod_of(**parts))["resources"] == {"requests": gpus, "limits": gpus}


def test_pods_meet_the_restricted_standard_and_hold_no_token(pod_of: Any) -> None:
    pod = pod_of()
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = trainer(pod)["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False


def test_rdma_adds_the_one_capability_that_it_needs(pod_of: Any) -> None:
    pod = pod_of(worker={"network": "rdma"})
    assert trainer(pod)["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert env(pod)["NCCL_IB_DISABLE"] == "0"


def test_istio_stays_out(pod_of: Any) -> None:
    metadata = pod_of()["metadata"]
    assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"


def test_volumes_are_where_the_trainer_looks_for_them(pod_of: Any) -> None:
    pod = pod_of(
        graph={
            "source": "npz",
            "path": "/data/x.npz",
            "volume": {"persistentVolumeClaim": {"claimName": "graphs"}, "mountPath": "/data"},
        },
        model={"kind": "mine:blocks", "layers": 8, "code": {"configMap": "my-model"}},
        checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "runs"}, "subPath": "team"}},
    )
    found = mounts(pod)
    assert found[contract.SHM_MOUNT]["emptyDir"] == {"medium": "Memory"}
    assert found["/data"]["persistentVolumeClaim"] == {"claimName": "graphs"}
    assert found["/data"]["readOnly"] is True
    assert (found[contract.OUT_MOUNT]["subPath"], env(pod)[contract.ENV_OUT]) == ("team", "/gnnpipe/out/cora")
    assert "emptyDir" in found[env(pod)[contract.ENV_CACHE]]
    assert found[contract.CODE_MOUNT]["configMap"] == {"name": "my-model"}
    assert env(pod)["PYTHONPATH"] == contract.CODE_MOUNT


def test_without_a_checkpoint_volume_results_live_in_the_pod(pod_of: Any) -> None:
    assert mounts(pod_of())[contract.OUT_MOUNT]["emptyDir"] == {}


def test_the_template_is_merged_over_the_pod(pod_of: Any) -> None:
    template = {
        "metadata": {"labels": {"team": "graphs"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "containers": [
                {"name": contract.TRAINER_CONTAINER, "env": [{"name": "NCCL_DEBUG", "value": "INFO"}]},
                {"name": "logs", "image": "fluent"},
            ],
        },
    }
    pod = pod_of(worker={"template": template})
    assert pod["metadata"]["labels"]["team"] == "graphs"
    assert pod["metadata"]["labels"]["gnnpipe.io/job"] == "cora"
    assert pod["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert [c["name"] for c in pod["spec"]["containers"]] == [contract.TRAINER_CONTAINER, "logs"]
    assert env(pod)["NCCL_DEBUG"] == "INFO"
    assert env(pod)[contract.ENV_STAGE] == "1"


def test_stages_are_drawn_to_each_other_by_the_key_that_the_manifest_names(pod_of: Any) -> None:
    pod = pod_of(runPolicy={"scheduling": {"topologyKey": "rack"}})
    terms = pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "rack" in [term["podAffinityTerm"]["topologyKey"] for term in terms]


def test_the_service_is_headless_and_names_pods_before_they_are_ready(make_job: Any) -> None:
    service = build_service(make_job())
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"gnnpipe.io/job": "cora"}


@pytest.mark.parametrize(
    ("scheduling", "scheduler", "marks"),
    [
        ({"gang": "volcano", "queue": "q"}, "volcano", {"scheduling.k8s.io/group-name": "cora"}),
        (
            {"gang": "scheduler-plugins"},
            "scheduler-plugins-scheduler",
            {"scheduling.x-k8s.io/pod-group": "cora"},
        ),
        (
            {"gang": "kueue", "queue": "q"},
            None,
            {
                "kueue.x-k8s.io/queue-name": "q",
                "kueue.x-k8s.io/pod-group-name": "cora-a2",
                "kueue.x-k8s.io/pod-group-total-count": "4",
            },
        ),
    ],
)
def test_each_gang_scheduler_finds_its_marks_on_the_pods(
    pod_of: Any, scheduling: dict[str, Any], scheduler: str | None, marks: dict[str, str]
) -> None:
    pod = pod_of(runPolicy={"scheduling": scheduling})
    both = {**pod["metadata"]["labels"], **pod["metadata"]["annotations"]}
    assert {key: both.get(key) for key in marks} == marks
    assert pod["spec"].get("schedulerName") == scheduler


def test_a_pod_group_wants_every_stage(make_job: Any) -> None:
    scheduling = {"gang": "volcano", "queue": "q", "priorityClass": "high"}
    job = make_job(spec=spec_with(runPolicy={"scheduling": scheduling}))
    accepted = accept(job, stopped=True).accepted
    assert accepted is not None
    group = build_podgroup(job, accepted)
    assert group["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert group["spec"] == {"minMember": 4, "queue": "q", "priorityClassName": "high"}


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {"a": {"c": 2}}),
        ({"args": [1]}, {"args": [2]}, {"args": [2]}),
        (
            {"volumes": [{"name": "x", "emptyDir": {}}]},
            {"volumes": [{"name": "y"}, {"name": "x", "$patch": "delete"}]},
            {"volumes": [{"name": "y"}]},
        ),
        (
            {"ports": [{"containerPort": 1, "name": "a"}]},
            {"ports": [{"containerPort": 1, "hostPort": 9}]},
            {"ports": [{"containerPort": 1, "name": "a", "hostPort": 9}]},
        ),
    ],
)
def test_merging_follows_the_rules_of_strategic_merge(base: Any, patch: Any, merged: Any) -> None:
    assert merge(base, patch) == merged
