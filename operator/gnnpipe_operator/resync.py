"""Compares what the watches told with a listing of names and versions, once a minute.

It finds objects whose deletion fell into a gap between two watches, which kopf never tells of, and watches that
have died without a word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gnnpipe_api.contract import GROUP, PLURAL, VERSION
from gnnpipe_operator.api_client import ApiClient, ApiError, Unreachable
from gnnpipe_operator.health import Health
from gnnpipe_operator.labels import LABEL_JOB
from gnnpipe_operator.observed import job_of_pod
from gnnpipe_operator.store import Key, Store

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
PAGE = 500
# Only metadata: a listing of thousands of pods stays small.
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
Listing = dict[str, tuple[Key, int]]  # uid -> (job, resource version)


class Resync:
    def __init__(
        self,
        client: ApiClient,
        store: Store,
        health: Health,
        namespace: str | None,
        on_lost: Callable[[str, Key, str], None],
    ) -> None:
        """`on_lost(kind, key, uid)` is called for each object that is gone without an event."""
        scope = f"/namespaces/{namespace}" if namespace else ""
        self._paths = {
            "jobs": f"/apis/{GROUP}/{VERSION}{scope}/{PLURAL}",
            "pods": f"/api/v1{scope}/pods",
        }
        self._client = client
        self._store = store
        self._health = health
        self._on_lost = on_lost
        self._behind: dict[str, dict[str, int]] = {"jobs": {}, "pods": {}}

    async def run(self) -> None:
        while True:
            self._health.beat("resync")
            await asyncio.sleep(EVERY_SECONDS)
            for kind in self._paths:
                try:
                    await self.compare(kind)
                except (ApiError, Unreachable) as error:
                    log.warning("cannot list %s to compare: %s", kind, error)

    async def compare(self, kind: str) -> None:
        listed, as_of = await self._list(kind)
        known = self._store.versions(kind)
        for uid, (key, version) in known.items():
            if uid not in listed and version <= as_of:
                log.info("%s of %s went away unseen", kind, "/".join(key))
                self._on_lost(kind, key, uid)
        # Behind twice, by the same version: a minute is no delay, it is a dead watch.
        stuck = [
            uid
            for uid, version in self._behind[kind].items()
            if uid in listed and _seen(known, uid) < version
        ]
        self._health.trouble(
            kind, f"the watch of {kind} is dead: {len(stuck)} changes unseen" if stuck else None
        )
        self._behind[kind] = {u: version for u, (_, version) in listed.items() if _seen(known, u) < version}

    async def _list(self, kind: str) -> tuple[Listing, int]:
        """What there is, and the version of the cluster that the listing speaks of."""
        listed: Listing = {}
        params = {"limit": str(PAGE)} | ({"labelSelector": LABEL_JOB} if kind == "pods" else {})
        while True:
            page = await self._client.get(self._paths[kind], params=params, accept=METADATA_ONLY)
            for item in page.get("items") or []:  # an empty list comes as null
                key = _key_of(kind, item)
                if key:
                    meta = item["metadata"]
                    listed[meta["uid"]] = key, int(meta["resourceVersion"])
            if not page["metadata"].get("continue"):
                return listed, int(page["metadata"]["resourceVersion"])
            params["continue"] = page["metadata"]["continue"]


def _key_of(kind: str, item: dict[str, Any]) -> Key | None:
    name = item["metadata"]["name"] if kind == "jobs" else job_of_pod(item)
    return (item["metadata"]["namespace"], name) if name else None


def _seen(known: Listing, uid: str) -> int:
    return known[uid][1] if uid in known else -1
