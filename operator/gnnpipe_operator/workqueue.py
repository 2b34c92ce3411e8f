"""Which job to look at next. One job is never looked at twice at the same time, many jobs are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from gnnpipe_operator.api_client import ApiError, Unreachable
from gnnpipe_operator.metrics import RECONCILE_ERRORS, RECONCILE_SECONDS
from gnnpipe_operator.store import Key

log = logging.getLogger(__name__)

WORKERS = 16
LONGEST_SLEEP_SECONDS = 300.0  # a clock may jump: no wake-up is trusted for longer
FIRST_RETRY_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 30.0

Work = Callable[[Key], Awaitable[datetime | None]]


class WorkQueue:
    def __init__(self, work: Work, may_work: asyncio.Event) -> None:
        self._work = work
        self._may_work = may_work  # cleared while another replica may be leading
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()  # in the queue
        self._busy: set[Key] = set()
        self._again: set[Key] = set()  # kicked while busy
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._retries: dict[Key, int] = {}

    def kick(self, key: Key) -> None:
        """Look at this job soon."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def forget(self, key: Key) -> None:
        self._retries.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            await self._may_work.wait()
            self._waiting.discard(key)
            self._busy.add(key)
            try:
                await self._look_at(key)
            finally:
                self._busy.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.kick(key)

    async def _look_at(self, key: Key) -> None:
        began = time.perf_counter()
        try:
            wake_at = await self._work(key)
        except Exception as error:
            RECONCILE_ERRORS.inc()
            self._retry(key, error)
        else:
            self._retries.pop(key, None)
            self._wake(key, wake_at)
        RECONCILE_SECONDS.observe(time.perf_counter() - began)

    def _retry(self, key: Key, error: Exception) -> None:
        tries = self._retries[key] = self._retries.get(key, 0) + 1
        delay = min(FIRST_RETRY_SECONDS * 2 ** min(tries - 1, 10), LONGEST_RETRY_SECONDS)
        where = "/".join(key)
        if isinstance(error, Unreachable | ApiError):
            log.warning("%s: %s; trying again in %.1f s", where, error, delay)
        else:
            log.error("%s: unexpected; trying again in %.1f s", where, delay, exc_info=error)
        self._wake_in(key, delay)

    def _wake(self, key: Key, at: datetime | None) -> None:
        if at is None:
            self.forget(key)
        else:
            self._wake_in(key, (at - datetime.now(UTC)).total_seconds())

    def _wake_in(self, key: Key, seconds: float) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        delay = min(max(seconds, 0.0), LONGEST_SLEEP_SECONDS)
        self._timers[key] = asyncio.get_running_loop().call_later(delay, self.kick, key)
