"""Progress is asked for politely, and a pod's silence is not held against the one that takes its place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import aiohttp
from aiohttp import web

from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.poller import Poller
from gnnpipe_operator.progress import Progress
from gnnpipe_operator.store import Key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = ObservedJob("cora", "lab", "job-uid", NOW, {})
POD = ObservedPod("cora-s0-a0", "first", 0, 0, NOW, phase="Running", ip="127.0.0.1")


class OneJob:
    """What the poller knows of the cluster: a job with one pod."""

    def __init__(self, pod: ObservedPod) -> None:
        self.pod = pod

    def pods_of(self, job: ObservedJob) -> list[ObservedPod]:
        return [self.pod]


async def asked(store: OneJob, poller: Poller, times: int) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(times):
            assert await poller._ask_job(session, JOB) == store.pod.uid


def test_a_silent_pod_is_left_alone_for_a_while_but_not_its_successor() -> None:
    requests: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(request.path)
        if len(requests) == 1:
            return web.Response(status=503)
        return web.json_response({"epoch": 7, "epochs": 9})

    async def play() -> None:
        app = web.Application()
        app.router.add_get("/progress", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = cast(Any, site._server).sockets[0].getsockname()[1]
        store = OneJob(replace(POD, port=port))
        heard: dict[str, Progress] = {}
        kicked: list[Key] = []
        poller = Poller(cast(Any, store), heard, kicked.append)
        await asked(store, poller, times=3)
        assert (len(requests), heard, kicked) == (1, {}, [])
        store.pod = replace(store.pod, name="cora-s0-a1", uid="second")
        await asked(store, poller, times=2)
        assert (len(requests), heard["job-uid"].epoch) == (3, 7)
        assert kicked == [("lab", "cora")], "nothing new was said the second time"
        await runner.cleanup()

    asyncio.run(play())
