"""The writes that a job's life is made of, each safe to repeat."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Protocol

from gnnpipe_api.contract import GROUP, KIND, PLURAL, VERSION
from gnnpipe_api.status import JobStatus
from gnnpipe_operator.actions import DeletePod, EmitEvent
from gnnpipe_operator.api_client import ApiClient, ApiError
from gnnpipe_operator.labels import MANAGER
from gnnpipe_operator.observed import ObservedJob, ObservedPod, observe_job, observe_pod

EVENT_MESSAGE_LIMIT = 1000  # the API server takes 1024 characters


class Conflict(Exception):
    """The job changed meanwhile: decide again on what it is now."""


class Gone(Exception):
    """The job or its namespace is being deleted: nothing is left to do."""


class Refused(Exception):
    """The API server will not have the object. `final`: not even later."""

    def __init__(self, message: str, final: bool) -> None:
        super().__init__(message)
        self.final = final


class Cluster(Protocol):
    """What carrying out a decision needs. Tests give their own, to play any cluster at any moment."""

    async def emit(self, job: ObservedJob, event: EmitEvent, now: datetime) -> None: ...
    async def write_status(self, job: ObservedJob, status: JobStatus) -> ObservedJob: ...
    async def create_pod(self, job: ObservedJob, body: dict[str, Any]) -> ObservedPod: ...
    async def create(self, job: ObservedJob, body: dict[str, Any]) -> None: ...
    async def delete_pod(self, job: ObservedJob, deletion: DeletePod) -> ObservedPod | None: ...
    async def delete_job(self, job: ObservedJob) -> None: ...


_COLLECTIONS = {"Service": "services", "PodGroup": "podgroups", "Pod": "pods"}


class KubeCluster:
    def __init__(self, client: ApiClient, identity: str) -> None:
        self._client = client
        self._identity = identity

    async def emit(self, job: ObservedJob, event: EmitEvent, now: datetime) -> None:
        body = event_body(job, event, now, self._identity)
        try:
            await self._client.post(f"/api/v1/namespaces/{job.namespace}/events", body)
        except ApiError as error:
            if error.status != 409:  # 409: told before, by an operator that died right after
                raise _judged(error) from error

    async def write_status(self, job: ObservedJob, status: JobStatus) -> ObservedJob:
        operations: list[dict[str, Any]] = [
            # With the version in it, the API server refuses the patch if anybody wrote in between.
            {"op": "replace", "path": "/metadata/resourceVersion", "value": str(job.resource_version)},
            {"op": "add", "path": "/status", "value": status.as_dict()},
        ]
        try:
            return observe_job(await self._client.json_patch(f"{_job_path(job)}/status", operations))
        except ApiError as error:
            if error.status == 409:
                raise Conflict(error.message) from error
            if error.status == 404:
                raise Gone(error.message) from error
            raise

    async def create_pod(self, job: ObservedJob, body: dict[str, Any]) -> ObservedPod:
        return observe_pod(await self._create(job, body))

    async def create(self, job: ObservedJob, body: dict[str, Any]) -> None:
        await self._create(job, body)

    async def _create(self, job: ObservedJob, body: dict[str, Any]) -> dict[str, Any]:
        version = body["apiVersion"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        path = f"{prefix}/namespaces/{job.namespace}/{_COLLECTIONS[body['kind']]}"
        try:
            return await self._client.post(path, body)
        except ApiError as error:
            if error.status != 409:
                raise _judged(error, kind=body["kind"]) from error
        return await self._existing(job, body, path)

    async def _existing(self, job: ObservedJob, body: dict[str, Any], path: str) -> dict[str, Any]:
        """The object is there already: ours, made by an operator that died, or somebody else's."""
        name, kind = body["metadata"]["name"], body["kind"]
        try:
            there = await self._client.get(f"{path}/{name}")
        except ApiError as error:
            if error.status == 404:
                raise Conflict(f"{kind} {name} went away just now") from error
            raise
        owners = there["metadata"].get("ownerReferences") or []
        if any(owner.get("uid") == job.uid for owner in owners):
            return there
        raise Refused(f"a {kind} called {name} exists and is not this job's; delete it", final=False)

    async def delete_pod(self, job: ObservedJob, deletion: DeletePod) -> ObservedPod | None:
        """The pod as it is while it shuts down; None when it is gone."""
        body: dict[str, Any] = {"preconditions": {"uid": deletion.uid}}
        if deletion.grace_seconds is not None:
            body["gracePeriodSeconds"] = deletion.grace_seconds
        answer = await self._delete(f"/api/v1/namespaces/{job.namespace}/pods/{deletion.name}", body)
        return observe_pod(answer) if answer and answer.get("kind") == "Pod" else None

    async def delete_job(self, job: ObservedJob) -> None:
        body = {"preconditions": {"uid": job.uid}, "propagationPolicy": "Background"}
        await self._delete(_job_path(job), body)

    async def _delete(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return await self._client.delete(path, body)
        except ApiError as error:
            if error.status not in (404, 409):  # gone already, or another object has its name by now
                raise
        return None


def event_body(job: ObservedJob, event: EmitEvent, now: datetime, identity: str) -> dict[str, Any]:
    told = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{job.uid}/{event.key}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{digest}", "namespace": job.namespace},
        "involvedObject": {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "name": job.name,
            "namespace": job.namespace,
            "uid": job.uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:EVENT_MESSAGE_LIMIT],
        "firstTimestamp": told,
        "lastTimestamp": told,
        "count": 1,
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "reportingInstance": identity,
    }


def _job_path(job: ObservedJob) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{job.namespace}/{PLURAL}/{job.name}"


def _judged(error: ApiError, kind: str = "") -> Exception:
    """What a refused creation means for the job."""
    if error.status == 404 and kind != "PodGroup":
        return Gone(error.message)
    if error.status == 403 and "being terminated" in error.message:
        return Gone(error.message)
    if kind and error.status in (400, 422):
        return Refused(error.message, final=True)
    if kind and error.status in (403, 404):
        return Refused(error.message, final=False)
    return error
