"""What the operator sees of the cluster, parsed once from raw objects into what the policies need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from gnnpipe_api.contract import MONITOR_PORT, MONITOR_PORT_NAME, TRAINER_CONTAINER
from gnnpipe_api.status import JobStatus
from gnnpipe_operator.labels import ANNOTATION_GENERATION, LABEL_ATTEMPT, LABEL_JOB, PLANNER, stage_of

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One stage's pod, or the one that plans. `exit_code` is the trainer's; a sidecar's end means nothing to a job."""

    name: str
    uid: str
    stage: int  # PLANNER: it settles auto
    attempt: int
    created: datetime
    phase: str = "Pending"
    resource_version: int = 0
    owner_uid: str = ""  # the job's; a job made anew under an old name has another
    generation: int = 1  # of the job whose spec it was made from
    deletion_deadline: datetime | None = None  # when its grace period ends; None: nobody deletes it
    exit_code: int | None = None
    at_rest: bool = False  # its kubelet tells of its containers, and none of them runs
    finished_at: datetime | None = None
    reason: str = ""  # Evicted, NodeLost, OOMKilled, ImagePullBackOff, ...
    message: str = ""
    waiting: str = ""  # why a container does not start
    unschedulable: str = ""  # the scheduler's sentence
    disrupted: bool = False  # the DisruptionTarget condition: preemption, drain, taint
    node_lost: bool = False  # its node no longer reports; the pod itself may run on
    ip: str = ""
    port: int = MONITOR_PORT

    @property
    def plans(self) -> bool:
        return self.stage == PLANNER

    @property
    def deleting(self) -> bool:
        return self.deletion_deadline is not None

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 or (self.exit_code is None and self.phase == "Succeeded")

    @property
    def failed(self) -> bool:
        return (self.exit_code is not None and self.exit_code != 0) or (
            self.exit_code is None and self.phase == "Failed"
        )

    @property
    def finished(self) -> bool:
        return self.succeeded or self.failed

    @property
    def running(self) -> bool:
        return self.phase == "Running" and not self.finished

    @property
    def over(self) -> bool:
        """Nothing of it runs any more. The phase alone does not say so: older kubelets call a pod that they evict
        Failed before they stop it. The object itself may stay for a while, until the kubelet has cleared up."""
        return self.phase in ("Succeeded", "Failed") and self.at_rest


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A GNNPipeJob as the API server holds it. The spec stays raw: it may be wrong."""

    name: str
    namespace: str
    uid: str
    created: datetime
    spec: dict[str, Any]
    generation: int = 1
    resource_version: int = 0
    deleting: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    status: JobStatus = field(default_factory=JobStatus)


def observe_job(raw: Raw) -> ObservedJob:
    meta = raw["metadata"]
    try:
        status = JobStatus.model_validate(raw.get("status") or {})
    except ValidationError:
        # Somebody wrote nonsense into the status. Nothing in it can be trusted; the pods still tell the
        # attempt, so starting from an empty one converges.
        status = JobStatus()
    return ObservedJob(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        created=parse_time(meta["creationTimestamp"]),
        spec=dict(raw.get("spec") or {}),
        generation=int(meta.get("generation", 1)),
        resource_version=int(meta["resourceVersion"]),
        deleting="deletionTimestamp" in meta,
        labels=dict(meta.get("labels") or {}),
        status=status,
    )


def job_of_pod(raw: Raw) -> str | None:
    """The job that a pod belongs to; None for pods that only look alike (labels without an owner)."""
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    numbered = stage_of(labels) is not None and str(labels.get(LABEL_ATTEMPT, "")).isdigit()
    owner = next((o for o in meta.get("ownerReferences") or [] if o.get("controller")), None)
    return str(owner["name"]) if owner and numbered and owner["name"] == labels.get(LABEL_JOB) else None


def observe_pod(raw: Raw) -> ObservedPod:
    meta, status = raw["metadata"], raw.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    terminated, waiting = _worker_state(status)
    scheduled = conditions.get("PodScheduled", {})
    deletion, stage = meta.get("deletionTimestamp"), stage_of(meta["labels"])
    assert stage is not None, "only pods that job_of_pod knows are observed"
    finished = terminated.get("finishedAt")
    return ObservedPod(
        name=meta["name"],
        uid=meta["uid"],
        stage=stage,
        attempt=int(meta["labels"][LABEL_ATTEMPT]),
        created=parse_time(meta["creationTimestamp"]),
        phase=status.get("phase", "Pending"),
        resource_version=int(meta["resourceVersion"]),
        owner_uid=next((o["uid"] for o in meta.get("ownerReferences") or [] if o.get("controller")), ""),
        generation=int((meta.get("annotations") or {}).get(ANNOTATION_GENERATION, 1)),
        deletion_deadline=parse_time(deletion) if deletion else None,
        exit_code=terminated.get("exitCode"),
        at_rest=_at_rest(status),
        finished_at=parse_time(finished) if finished else None,
        reason=status.get("reason") or terminated.get("reason") or waiting.get("reason") or "",
        message=status.get("message") or terminated.get("message") or waiting.get("message") or "",
        waiting=_told_alike(waiting.get("reason") or ""),
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
        node_lost=_node_lost(raw, conditions),
        ip=status.get("podIP", ""),
        port=_monitor_port(raw),
    )


def _node_lost(raw: Raw, conditions: Mapping[str, Raw]) -> bool:
    """Kubernetes makes the pods of a silent node not ready, though their containers were when last heard of."""
    if (raw.get("spec") or {}).get("readinessGates"):
        return False  # then somebody else has a say in Ready
    ready, containers = (conditions.get(kind, {}).get("status") for kind in ("Ready", "ContainersReady"))
    return ready == "False" and containers == "True"


def _told_alike(reason: str) -> str:
    """The kubelet says the two by turns; to a person they are one trouble."""
    return "ImagePullBackOff" if reason == "ErrImagePull" else reason


def _worker_state(status: Raw) -> tuple[Raw, Raw]:
    """The terminated and the waiting state of the worker; an init container that fails counts as it."""
    init = status.get("initContainerStatuses") or []
    workers = [c for c in status.get("containerStatuses") or [] if c.get("name") == TRAINER_CONTAINER]
    for container in [*init, *workers]:
        state = container.get("state") or {}
        is_worker = container.get("name") == TRAINER_CONTAINER
        terminated = state.get("terminated") or {}
        if terminated and (is_worker or terminated.get("exitCode")):
            return terminated, {}
        waiting = state.get("waiting") or {}
        if waiting and waiting.get("reason") not in ("ContainerCreating", "PodInitializing"):
            return {}, waiting
    return {}, {}


def _at_rest(status: Raw) -> bool:
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return bool(containers) and not any("running" in (each.get("state") or {}) for each in containers)


def _monitor_port(raw: Raw) -> int:
    for container in (raw.get("spec") or {}).get("containers") or []:
        for port in container.get("ports") or []:
            if container.get("name") == TRAINER_CONTAINER and port.get("name") == MONITOR_PORT_NAME:
                return int(port["containerPort"])
    return MONITOR_PORT


def parse_time(text: str) -> datetime:
    """RFC 3339 as Kubernetes writes it, seconds or microseconds, always UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
