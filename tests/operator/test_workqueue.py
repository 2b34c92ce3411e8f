"""The queue: one look at a job at a time, none forgotten, failures retried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gnnpipe_operator.api_client import Unreachable
from gnnpipe_operator.workqueue import WorkQueue

KEY = ("team", "cora")
Looks = list[tuple[str, str]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def run_queue(work: Callable[..., Any], story: Callable[[WorkQueue, asyncio.Event], Awaitable[None]]) -> None:
    async def play() -> None:
        leading = asyncio.Event()
        leading.set()
        queue = WorkQueue(work, leading)
        running = asyncio.create_task(queue.run())
        try:
            await story(queue, leading)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())


def test_a_job_kicked_while_it_is_looked_at_is_looked_at_once_more_and_not_beside() -> None:
    at_once, most, looks = 0, 0, 0
    gate = asyncio.Event()

    async def work(_: object) -> None:
        nonlocal at_once, most, looks
        at_once += 1
        most = max(most, at_once)
        looks += 1
        await gate.wait()
        at_once -= 1

    async def story(queue: WorkQueue, _: asyncio.Event) -> None:
        queue.kick(KEY)
        await until(lambda: looks == 1)
        for _ in range(5):
            queue.kick(KEY)
        gate.set()
        await until(lambda: looks == 2 and at_once == 0)

    run_queue(work, story)
    assert (looks, most) == (2, 1)


def test_one_job_that_hangs_does_not_hold_up_the_others() -> None:
    looks: Looks = []

    async def work(key: tuple[str, str]) -> None:
        if key == KEY:
            await asyncio.Event().wait()
        looks.append(key)

    async def story(queue: WorkQueue, _: asyncio.Event) -> None:
        queue.kick(KEY)
        queue.kick(("team", "pubmed"))
        await until(lambda: looks == [("team", "pubmed")])

    run_queue(work, story)


def test_a_wake_up_comes_at_its_time() -> None:
    looked: list[datetime] = []
    wake_at = datetime.now(UTC) + timedelta(seconds=0.3)

    async def work(_: object) -> datetime | None:
        looked.append(datetime.now(UTC))
        return wake_at if len(looked) == 1 else None

    async def story(queue: WorkQueue, _: asyncio.Event) -> None:
        queue.kick(KEY)
        await until(lambda: len(looked) == 2)

    run_queue(work, story)
    assert looked[1] >= wake_at - timedelta(seconds=0.02)


def test_what_fails_is_tried_again_and_told_without_a_traceback_when_the_api_server_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = 0

    async def work(_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise Unreachable("GET /: connection refused")

    async def story(queue: WorkQueue, _: asyncio.Event) -> None:
        queue.kick(KEY)
        await until(lambda: looks == 2)

    run_queue(work, story)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_nothing_is_done_while_another_may_be_leading() -> None:
    looks: Looks = []

    async def work(key: tuple[str, str]) -> None:
        looks.append(key)

    async def story(queue: WorkQueue, leading: asyncio.Event) -> None:
        leading.clear()
        queue.kick(KEY)
        await asyncio.sleep(0.05)  # time in which a look would have happened
        assert looks == []
        leading.set()
        await until(lambda: looks == [KEY])

    run_queue(work, story)
