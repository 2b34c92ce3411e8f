"""Which pods go: those of past attempts always, those of a finished job by spec.runPolicy.cleanPods."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gnnpipe_operator.actions import DeletePod
from gnnpipe_operator.observed import ObservedPod

SURVIVOR_GRACE_SECONDS = 5  # a gang that lost a member cannot checkpoint together: no need to wait long
FORCE_AFTER = timedelta(seconds=60)  # beyond its grace period: the node is gone and nobody will confirm


def stop(pods: Iterable[ObservedPod], now: datetime, grace_seconds: int | None) -> list[DeletePod]:
    """Deletes every pod once; one that outlives its grace period by a minute is forced off a lost node."""
    deletions = []
    for pod in pods:
        if pod.deletion_deadline is None:
            deletions.append(DeletePod(pod.name, pod.uid, grace_seconds))
        elif now >= pod.deletion_deadline + FORCE_AFTER:
            deletions.append(DeletePod(pod.name, pod.uid, 0))
    return deletions


def next_force(pods: Iterable[ObservedPod]) -> datetime | None:
    deadlines = [pod.deletion_deadline + FORCE_AFTER for pod in pods if pod.deletion_deadline]
    return min(deadlines, default=None)


def leftovers(pods: Iterable[ObservedPod], clean_pods: str) -> list[ObservedPod]:
    """Pods of the last attempt that a finished job does not keep.

    A trainer that still runs when its gang is over holds a GPU for nothing, so it goes under every policy;
    "Running" also takes pods whose trainer is done but whose sidecars are not.
    """
    if clean_pods == "All":
        return list(pods)
    if clean_pods == "None":
        return [pod for pod in pods if not pod.finished]
    return [pod for pod in pods if pod.phase not in ("Succeeded", "Failed")]
