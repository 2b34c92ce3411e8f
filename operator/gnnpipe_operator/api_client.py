"""A small asynchronous client of the API server. kopf watches; everything that the operator asks or writes
goes through here, with a time limit on each request.

The official client is not used: it is synchronous, and with its models it needs more memory than all the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import kopf

REQUEST_SECONDS = 15.0
CONNECTIONS = 32

JSON_PATCH = "application/json-patch+json"


class ApiError(Exception):
    """The API server said no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Unreachable(Exception):
    """No answer: the API server is away or the network is."""


class ApiClient:
    """One session, made anew when the credentials are no longer taken (service-account tokens rotate)."""

    def __init__(self, login: Callable[[], kopf.ConnectionInfo]) -> None:
        self._login = login
        self._session: aiohttp.ClientSession | None = None
        self._server = ""
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, **options: Any) -> dict[str, Any]:
        return await self.request("GET", path, **options)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.request("POST", path, body=body)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.request("PUT", path, body=body)

    async def delete(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.request("DELETE", path, body=body)

    async def json_patch(self, path: str, operations: list[dict[str, Any]]) -> dict[str, Any]:
        return await self.request("PATCH", path, body=operations, content_type=JSON_PATCH)

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
        accept: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        options: dict[str, Any] = {"headers": headers, "params": params}
        if body is not None:
            options["json"] = body
        session = await self._open()
        try:
            return await self._once(session, method, path, options)
        except ApiError as error:
            if error.status != 401:
                raise
        return await self._once(await self._renew(session), method, path, options)

    async def _once(
        self, session: aiohttp.ClientSession, method: str, path: str, options: dict[str, Any]
    ) -> dict[str, Any]:
        try:
            async with session.request(method, self._server + path, **options) as response:
                with contextlib.suppress(ValueError):
                    answer = await response.json(content_type=None)
                    if response.status < 400 and isinstance(answer, dict):
                        return answer
                    if isinstance(answer, dict):
                        why = str(answer.get("reason", response.reason))
                        raise ApiError(response.status, why, str(answer.get("message", "")))
                raise ApiError(response.status, str(response.reason), "the answer is not JSON")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__}: {error}") from error

    async def _open(self) -> aiohttp.ClientSession:
        async with self._lock:
            if self._session is None:
                self._session = self._make_session()
            return self._session

    async def _renew(self, stale: aiohttp.ClientSession) -> aiohttp.ClientSession:
        async with self._lock:
            if self._session is stale:
                self._session = self._make_session()
                # Others may still be reading through the old one; their requests end by themselves.
                asyncio.get_running_loop().call_later(2 * REQUEST_SECONDS, _close_later, stale)
            assert self._session is not None
            return self._session

    def _make_session(self) -> aiohttp.ClientSession:
        try:
            info = self._login()
        except OSError as error:
            raise Unreachable(f"credentials cannot be read: {error}") from error
        self._server = info.server.rstrip("/")
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=info.as_ssl_context(), limit=CONNECTIONS),
            headers={"User-Agent": "gnnpipe-operator", **info.as_http_headers()},
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        )


_closing: set[asyncio.Task[None]] = set()


def _close_later(session: aiohttp.ClientSession) -> None:
    task = asyncio.ensure_future(session.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def login(settings: kopf.OperatorSettings | None = None) -> kopf.ConnectionInfo:
    """KUBECONFIG where given, else the pod's service account, else ~/.kube/config."""
    given = settings or kopf.OperatorSettings()

    order = [kopf.login_with_service_account, kopf.login_with_kubeconfig]
    for attempt in reversed(order) if os.environ.get("KUBECONFIG") else order:
        info = attempt(settings=given)
        if info is not None:
            return info
    raise kopf.LoginError("no cluster: neither KUBECONFIG nor a service account nor ~/.kube/config is there")
