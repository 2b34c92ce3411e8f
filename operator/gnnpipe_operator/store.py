"""What the operator knows of the cluster: fed by watches and by the answers to its own writes.

Without the latter a decision taken right after a write would still see the world before it, and write twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from gnnpipe_operator.observed import ObservedJob, ObservedPod

Key = tuple[str, str]  # namespace, name of the job
TOMBSTONE_SECONDS = 120.0  # longer than any answer or event can be late


class Store:
    def __init__(self) -> None:
        self._jobs: dict[Key, ObservedJob] = {}
        self._pods: dict[Key, dict[str, ObservedPod]] = {}  # by uid
        self._buried: dict[str, float] = {}  # uid -> when

    def job(self, key: Key) -> ObservedJob | None:
        return self._jobs.get(key)

    def jobs(self) -> Iterator[ObservedJob]:
        return iter(list(self._jobs.values()))

    def pods_of(self, job: ObservedJob) -> list[ObservedPod]:
        """The job's pods; those of an earlier job of the same name are the garbage collector's."""
        pods = self._pods.get((job.namespace, job.name), {}).values()
        return [pod for pod in pods if pod.owner_uid == job.uid]

    def put_job(self, job: ObservedJob) -> None:
        key = job.namespace, job.name
        known = self._jobs.get(key)
        stale = known is not None and known.uid == job.uid and known.resource_version > job.resource_version
        if not stale and job.uid not in self._buried:
            self._jobs[key] = job

    def drop_job(self, key: Key, uid: str) -> None:
        self._bury(uid)
        known = self._jobs.get(key)
        if known is not None and known.uid == uid:
            del self._jobs[key]

    def put_pod(self, key: Key, pod: ObservedPod) -> None:
        known = self._pods.get(key, {}).get(pod.uid)
        stale = known is not None and known.resource_version > pod.resource_version
        if not stale and pod.uid not in self._buried:
            self._pods.setdefault(key, {})[pod.uid] = pod

    def drop_pod(self, key: Key, uid: str) -> None:
        self._bury(uid)
        pods = self._pods.get(key, {})
        pods.pop(uid, None)
        if not pods:
            self._pods.pop(key, None)

    def versions(self, kind: str) -> dict[str, tuple[Key, int]]:
        """uid -> (job, resource version) of every known object of a kind, to compare with a listing."""
        if kind == "jobs":
            return {job.uid: (key, job.resource_version) for key, job in self._jobs.items()}
        return {
            pod.uid: (key, pod.resource_version) for key, pods in self._pods.items() for pod in pods.values()
        }

    def _bury(self, uid: str) -> None:
        """A late event or answer must not bring it back."""
        now = time.monotonic()
        self._buried[uid] = now
        while self._buried:
            oldest = next(iter(self._buried))
            if now - self._buried[oldest] < TOMBSTONE_SECONDS:
                break
            del self._buried[oldest]
