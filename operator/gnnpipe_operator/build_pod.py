"""One stage's pod, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gnnpipe_api import contract
from gnnpipe_api.job import JobSpec
from gnnpipe_api.plan import Plan
from gnnpipe_operator.actions import Accepted
from gnnpipe_operator.build_podgroup import GangMarks, gang_marks
from gnnpipe_operator.edits import resolved_manifest
from gnnpipe_operator.labels import ANNOTATION_GENERATION, LABEL_JOB, pod_labels, pod_name, service_name
from gnnpipe_operator.merge import merge
from gnnpipe_operator.network import NETWORKS, Network
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.owner import owner_reference
from gnnpipe_operator.volumes import volumes_of

USER_ID = 65532  # the user of the trainer's image; also the group that volumes are made writable for
GRACE_SECONDS = 60  # time to write a checkpoint when asked to stop
# Istio's proxy would end neither with the trainer nor let the ranks meet.
ISTIO_OFF = {"sidecar.istio.io/inject": "false"}


def build_pod(job: ObservedJob, accepted: Accepted, stage: int, attempt: int, image: str) -> dict[str, Any]:
    """`image` serves jobs that name none."""
    spec, plan = accepted.job.spec, accepted.plan
    assert plan is not None, "stages have pods only when there is a plan"
    network = NETWORKS[spec.worker.network]
    volumes, mounts = volumes_of(spec, trains=True)
    container = trainer_container(spec, image, mounts, network.capabilities)
    container |= {
        "command": contract.WORKER_COMMAND,
        "env": environment(spec, {**_contract_env(job, accepted, plan, stage, attempt), **network.env}),
        "ports": [
            {"name": contract.MONITOR_PORT_NAME, "containerPort": contract.MONITOR_PORT, "protocol": "TCP"}
        ],
        "resources": _resources(spec, plan, network),
    }
    pod = framed(job, accepted, stage, attempt, container, volumes)
    pod["spec"] |= {
        "hostname": pod_name(job.name, stage, attempt),
        "subdomain": service_name(job.name),
        "affinity": {"podAffinity": _closeness(job.name, spec.run_policy.scheduling.topology_key)},
    }
    mark(pod, gang_marks(job.name, spec.run_policy.scheduling, plan.stages, attempt))
    return merge(pod, spec.worker.template)


def framed(
    job: ObservedJob,
    accepted: Accepted,
    stage: int,
    attempt: int,
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
) -> dict[str, Any]:
    """What all pods of a job have in common: whose they are, and what they may do."""
    pod: dict[str, Any] = {
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
        "containers": [container],
        "volumes": volumes,
    }
    priority_class = accepted.job.spec.run_policy.scheduling.priority_class
    if priority_class:
        pod["priorityClassName"] = priority_class
    metadata = {
        "name": pod_name(job.name, stage, attempt),
        "namespace": job.namespace,
        "labels": {**pod_labels(job.name, stage, attempt), **ISTIO_OFF},
        "annotations": {ANNOTATION_GENERATION: str(job.generation), **ISTIO_OFF},
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}


def mark(pod: dict[str, Any], marks: GangMarks) -> None:
    """Makes the pod one of its scheduler's."""
    pod["metadata"]["labels"] |= marks.labels
    pod["metadata"]["annotations"] |= marks.annotations
    if marks.scheduler:
        pod["spec"]["schedulerName"] = marks.scheduler


def trainer_container(
    spec: JobSpec, image: str, mounts: list[dict[str, Any]], capabilities: Sequence[str] = ()
) -> dict[str, Any]:
    """Without its command, environment and resources."""
    container: dict[str, Any] = {
        "name": contract.TRAINER_CONTAINER,
        "image": spec.worker.image or image,
        "volumeMounts": mounts,
        "terminationMessagePath": contract.TERMINATION_MESSAGE,
        # Where the trainer could not leave a last word, the end of its log is one.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _container_security(capabilities),
    }
    if spec.worker.image_pull_policy:
        container["imagePullPolicy"] = spec.worker.image_pull_policy
    return container


def environment(spec: JobSpec, told: Mapping[str, str]) -> list[dict[str, str]]:
    env = {**told, "HOME": "/tmp"}
    if spec.model.code:
        env["PYTHONPATH"] = contract.CODE_MOUNT
    return [{"name": name, "value": value} for name, value in env.items()]


def _contract_env(
    job: ObservedJob, accepted: Accepted, plan: Plan, stage: int, attempt: int
) -> dict[str, str]:
    first = pod_name(job.name, 0, attempt)
    # One stage has nobody to meet in another pod, and no Service to ask for a name.
    alone = plan.stages == 1
    address = "127.0.0.1" if alone else f"{first}.{service_name(job.name)}.{job.namespace}.svc"
    return {
        contract.ENV_MANIFEST: as_line(resolved_manifest(accepted)),
        contract.ENV_STAGE: str(stage),
        contract.ENV_ATTEMPT: str(attempt),
        contract.ENV_MASTER_ADDR: address,
        contract.ENV_MASTER_PORT: str(contract.MASTER_PORT),
        # A folder of its own, so that jobs may share a volume.
        contract.ENV_OUT: f"{contract.OUT_MOUNT}/{job.name}",
        contract.ENV_NAMESPACE: job.namespace,
        contract.ENV_CACHE: contract.CACHE_MOUNT,
    }


def as_line(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, separators=(",", ":"))


def _resources(spec: JobSpec, plan: Plan, network: Network) -> dict[str, Any]:
    extended: dict[str, int | str] = dict(network.resources)
    if spec.training.device != "cpu":
        extended[spec.worker.gpu_resource] = plan.ways
    return {
        "requests": {**spec.worker.resources.requests, **extended},
        "limits": {**spec.worker.resources.limits, **extended},
    }


def _container_security(added: Sequence[str]) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if added:
        capabilities["add"] = list(added)
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


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
