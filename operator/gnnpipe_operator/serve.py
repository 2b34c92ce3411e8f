"""The operator's own HTTP: /healthz for the kubelet, /metrics for Prometheus."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from gnnpipe_operator.health import Health


async def serve_health(stack: AsyncExitStack, health: Health, port: int) -> None:
    async def healthz(_: web.Request) -> web.Response:
        problems = health.problems()
        return web.Response(status=500 if problems else 200, text="\n".join(problems) or "ok")

    await _serve(stack, "/healthz", healthz, port)


async def serve_metrics(stack: AsyncExitStack, registry: CollectorRegistry, port: int) -> None:
    async def metrics(_: web.Request) -> web.Response:
        # In a thread: with a thousand jobs this takes a while, and reconciling must not wait for it.
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    await _serve(stack, "/metrics", metrics, port)


async def _serve(stack: AsyncExitStack, path: str, handler: object, port: int) -> None:
    app = web.Application()
    app.router.add_get(path, handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, port=port).start()
