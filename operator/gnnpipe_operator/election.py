"""Who leads, settled by a Lease: of two replicas only one acts.

The holder renews every few seconds. While it cannot, it stops acting before anybody else may begin; when the
API server is back and the Lease still its own, it goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Any

from gnnpipe_operator.api_client import ApiClient, ApiError, Unreachable

log = logging.getLogger(__name__)

LEASE_SECONDS = 15  # how long a silent holder is respected
STOP_AFTER_SECONDS = 10.0  # a holder that could not renew for so long stops acting
RENEW_EVERY_SECONDS = 3.0


class LeadershipLost(Exception):
    """Another replica leads now."""


class Election:
    def __init__(self, client: ApiClient, namespace: str, name: str, identity: str) -> None:
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)  # the Lease's version, and since when it has not changed
        self.leading = asyncio.Event()

    async def acquire(self) -> None:
        """Waits until this replica leads."""
        log.info("%s waits for Lease %s", self._identity, self._name)
        while not await self._try():
            await asyncio.sleep(RENEW_EVERY_SECONDS)
        log.info("%s leads", self._identity)
        self.leading.set()

    async def keep(self) -> None:
        """Renews for ever. Raises LeadershipLost when another took over."""
        renewed = time.monotonic()
        while True:
            await asyncio.sleep(RENEW_EVERY_SECONDS)
            if await self._try(holding=True):
                renewed = time.monotonic()
                self.leading.set()
            elif time.monotonic() - renewed > STOP_AFTER_SECONDS and self.leading.is_set():
                log.warning("the Lease could not be renewed for %.0f s: pausing", STOP_AFTER_SECONDS)
                self.leading.clear()

    async def release(self) -> None:
        """Lets the next one begin at once."""
        try:
            lease = await self._client.get(f"{self._collection}/{self._name}")
            if lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                await self._client.put(f"{self._collection}/{self._name}", lease)
        except (ApiError, Unreachable) as error:
            log.warning("the Lease could not be released: %s", error)

    async def _try(self, holding: bool = False) -> bool:
        try:
            return await self._renew_or_take(holding)
        except ApiError as error:
            if error.status != 409:
                log.warning("Lease %s: %s", self._name, error)
        except Unreachable as error:
            log.warning("Lease %s: %s", self._name, error)
        return False

    async def _renew_or_take(self, holding: bool) -> bool:
        try:
            lease = await self._client.get(f"{self._collection}/{self._name}")
        except ApiError as error:
            if error.status != 404:
                raise
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}}
            await self._client.post(self._collection, {**body, "spec": self._spec({})})
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder and holder != self._identity and not self._expired(lease):
            if holding:
                raise LeadershipLost(f"{holder} leads")
            return False
        lease["spec"] = self._spec(spec)
        await self._client.put(f"{self._collection}/{self._name}", lease)
        return True

    def _expired(self, lease: dict[str, Any]) -> bool:
        """By our own clock since the Lease last changed: the holder's clock may be wrong."""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = version, time.monotonic()
        duration = float(lease["spec"].get("leaseDurationSeconds", LEASE_SECONDS))
        return time.monotonic() - self._seen[1] > duration

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
            "acquireTime": before.get("acquireTime", now) if mine else now,
            "leaseTransitions": before.get("leaseTransitions", 0) + (0 if mine else 1),
        }
