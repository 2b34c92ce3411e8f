"""One stage's pod, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gnnpipe_api import contract
from gnnpipe_api.job import JobSpec, Volume
from gnnpipe_operator.actions import Accepted
from gnnpipe_operator.build_podgroup import GangMarks, gang_marks
from gnnpipe_operator.edits import resolved_manifest
from gnnpipe_operator.labels import ANNOTATION_GENERATION, LABEL_JOB, pod_labels, pod_name, service_name
from gnnpipe_operator.merge import merge
from gnnpipe_operator.network import NETWORKS, Network
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.owner import owner_reference

USER_ID = 65532  # the user of the trainer's image; also the group that volumes are made writable for
GRACE_SECONDS = 60  # time to write a checkpoint when asked to stop
# Istio's proxy would end neither with the trainer nor let the ranks meet.
ISTIO_OFF = {"sidecar.istio.io/inject": "false"}


def build_pod(job: ObservedJob, accepted: Accepted, stage: int, attempt: int, image: str) -> dict[str, Any]:
    """`image` serves jobs that name none."""
    spec, plan = accepted.job.spec, accepted.plan
    marks = gang_marks(job.name, spec.run_policy.scheduling, plan.stages, attempt)
    metadata = {
        "name": pod_name(job.name, stage, attempt),
        "namespace": job.namespace,
        "labels": {**pod_labels(job.name, stage, attempt), **ISTIO_OFF, **marks.labels},
        "annotations": {ANNOTATION_GENERATION: str(job.generation), **ISTIO_OFF, **marks.annotations},
        "ownerReferences": [owner_reference(job)],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _pod_spec(job, accepted, stage, attempt, image, marks),
    }
    return merge(pod, spec.worker.template)


def _pod_spec(
    job: ObservedJob, accepted: Accepted, stage: int, attempt: int, image: str, marks: GangMarks
) -> dict[str, Any]:
    spec = accepted.job.spec
    volumes, mounts = _volumes(spec)
    pod: dict[str, Any] = {
        "hostname": pod_name(job.name, stage, attempt),
        "subdomain": service_name(job.name),
        "restartPolicy": "Never",  # the gang is the unit: one container back alone helps nobody
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"podAffinity": _closeness(job.name, spec.run_policy.scheduling.topology_key)},
        "containers": [_trainer(job, accepted, stage, attempt, image, mounts)],
        "volumes": volumes,
    }
    if spec.run_policy.scheduling.priority_class:
        pod["priorityClassName"] = spec.run_policy.scheduling.priority_class
    if marks.scheduler:
        pod["schedulerName"] = marks.scheduler
    return pod


def _trainer(
    job: ObservedJob, accepted: Accepted, stage: int, attempt: int, image: str, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    worker = accepted.job.spec.worker
    network = NETWORKS[worker.network]
    env = {**_contract_env(job, accepted, stage, attempt), **network.env, "HOME": "/tmp"}
    if accepted.job.spec.model.code:
        env["PYTHONPATH"] = contract.CODE_MOUNT
    container: dict[str, Any] = {
        "name": contract.TRAINER_CONTAINER,
        "image": worker.image or image,
        "command": contract.WORKER_COMMAND,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "ports": [
            {"name": contract.MONITOR_PORT_NAME, "containerPort": contract.MONITOR_PORT, "protocol": "TCP"}
        ],
        "resources": _resources(accepted, network),
        "volumeMounts": mounts,
        "terminationMessagePath": contract.TERMINATION_MESSAGE,
        # Where the trainer could not leave a last word, the end of its log is one.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _container_security(network),
    }
    if worker.image_pull_policy:
        container["imagePullPolicy"] = worker.image_pull_policy
    return container


def _contract_env(job: ObservedJob, accepted: Accepted, stage: int, attempt: int) -> dict[str, str]:
    first = pod_name(job.name, 0, attempt)
    # One stage has nobody to meet in another pod, and no Service to ask for a name.
    alone = accepted.plan.stages == 1
    address = "127.0.0.1" if alone else f"{first}.{service_name(job.name)}.{job.namespace}.svc"
    return {
        contract.ENV_MANIFEST: json.dumps(resolved_manifest(accepted), separators=(",", ":")),
        contract.ENV_STAGE: str(stage),
        contract.ENV_ATTEMPT: str(attempt),
        contract.ENV_MASTER_ADDR: address,
        contract.ENV_MASTER_PORT: str(contract.MASTER_PORT),
        # A folder of its own, so that jobs may share a volume.
        contract.ENV_OUT: f"{contract.OUT_MOUNT}/{job.name}",
        contract.ENV_NAMESPACE: job.namespace,
        contract.ENV_CACHE: contract.CACHE_MOUNT,
    }


def _resources(accepted: Accepted, network: Network) -> dict[str, Any]:
    spec = accepted.job.spec
    extended: dict[str, int | str] = dict(network.resources)
    if spec.training.device != "cpu":
        extended[spec.worker.gpu_resource] = accepted.plan.ways
    return {
        "requests": {**spec.worker.resources.requests, **extended},
        "limits": {**spec.worker.resources.limits, **extended},
    }


def _container_security(network: Network) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if network.capabilities:
        capabilities["add"] = list(network.capabilities)
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


def _volumes(spec: JobSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pod's volumes and the trainer's mounts of them."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(name: str, source: Mapping[str, Any], path: str, **mount: Any) -> None:
        volumes.append({"name": name, **source})
        given = {key: value for key, value in mount.items() if value}
        mounts.append({"name": name, "mountPath": path, **given})

    add("shm", {"emptyDir": {"medium": "Memory"}}, contract.SHM_MOUNT)
    add("tmp", {"emptyDir": {}}, "/tmp")
    add("cache", {"emptyDir": {}}, contract.CACHE_MOUNT)
    out = spec.checkpoint.volume
    add("out", out.source if out else {"emptyDir": {}}, contract.OUT_MOUNT, subPath=_folder(out))
    if spec.graph.volume:
        graph = spec.graph.volume
        # A file is only read; the named data sets are downloaded into their folder.
        read_only = spec.graph.source == "npz"
        add("graph", graph.source, graph.mount_path, subPath=_folder(graph), readOnly=read_only)
    if spec.model.code:
        code = {"configMap": {"name": spec.model.code.config_map}}
        add("code", code, contract.CODE_MOUNT, readOnly=True)
    return volumes, mounts


def _folder(volume: Volume | None) -> str | None:
    return volume.sub_path if volume else None


def _closeness(job: str, topology_key: str | None) -> dict[str, Any]:
    """Neighbouring stages talk all the time: same node if possible, else the same of what the manifest names."""
    weights = {"kubernetes.io/hostname": 100, topology_key or "topology.kubernetes.io/zone": 50}
    if topology_key:
        weights[topology_key] = 100
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": weight,
                "podAffinityTerm": {"topologyKey": key, "labelSelector": {"matchLabels": {LABEL_JOB: job}}},
            }
            for key, weight in weights.items()
        ]
    }
