"""What gang schedulers want to know: a PodGroup for two of them, labels and annotations for all three."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gnnpipe_api.job import SchedulingSpec
from gnnpipe_operator.actions import Accepted
from gnnpipe_operator.labels import LABEL_JOB, LABEL_MANAGED_BY, MANAGER
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.owner import owner_reference

PODGROUP_APIS = {
    "volcano": "scheduling.volcano.sh/v1beta1",
    "scheduler-plugins": "scheduling.x-k8s.io/v1alpha1",
}


@dataclass(frozen=True)
class GangMarks:
    """How a pod says that it belongs to a gang."""

    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    scheduler: str | None = None


def gang_marks(job: str, scheduling: SchedulingSpec, stages: int, attempt: int) -> GangMarks:
    if scheduling.gang == "volcano":
        return GangMarks(annotations={"scheduling.k8s.io/group-name": job}, scheduler="volcano")
    if scheduling.gang == "scheduler-plugins":
        labels = {"scheduling.x-k8s.io/pod-group": job}
        return GangMarks(labels=labels, scheduler="scheduler-plugins-scheduler")
    if scheduling.gang == "kueue":
        # Kueue takes a pod group as finished when its pods are: each attempt is a group of its own.
        labels = {**queue_marks(scheduling), "kueue.x-k8s.io/pod-group-name": f"{job}-a{attempt}"}
        return GangMarks(labels=labels, annotations={"kueue.x-k8s.io/pod-group-total-count": str(stages)})
    return GangMarks()


def queue_marks(scheduling: SchedulingSpec) -> dict[str, str]:
    """Labels by which Kueue lets a pod wait, also one that is no part of a gang."""
    return {"kueue.x-k8s.io/queue-name": scheduling.queue or ""} if scheduling.gang == "kueue" else {}


def build_podgroup(job: ObservedJob, accepted: Accepted) -> dict[str, Any]:
    """All stages or none. It has the job's name and serves every attempt."""
    scheduling = accepted.job.spec.run_policy.scheduling
    assert accepted.plan is not None, "stages have a group only when there is a plan"
    spec: dict[str, Any] = {"minMember": accepted.plan.stages}
    if scheduling.gang == "volcano":
        if scheduling.queue:
            spec["queue"] = scheduling.queue
        if scheduling.priority_class:
            spec["priorityClassName"] = scheduling.priority_class
    return {
        "apiVersion": PODGROUP_APIS[scheduling.gang],
        "kind": "PodGroup",
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "labels": {LABEL_JOB: job.name, LABEL_MANAGED_BY: MANAGER},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }
