"""Reads /progress from the pods of running jobs, politely: a pod that does not answer slows nobody down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import aiohttp

from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.progress import Progress, read_progress
from gnnpipe_operator.said import read_said
from gnnpipe_operator.store import Key, Store

log = logging.getLogger(__name__)

EVERY_SECONDS = 5.0
ANSWER_SECONDS = 2.0
AT_ONCE = 32
LONGEST_SILENCE_SECONDS = 60.0  # how long a silent pod is left alone at most
MOST_BYTES = 64 * 1024


class Poller:
    def __init__(self, store: Store, progress: dict[str, Progress], kick: Callable[[Key], None]) -> None:
        self._store = store
        self._progress = progress
        self._kick = kick
        self._limit = asyncio.Semaphore(AT_ONCE)
        self._silent: dict[str, tuple[int, float]] = {}  # by pod: (times in a row, when to ask again)

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                began = time.monotonic()
                running = [job for job in self._store.jobs() if job.status.phase == "Running"]
                asked = await asyncio.gather(*(self._ask_job(session, job) for job in running))
                self._silent = {uid: self._silent[uid] for uid in asked if uid in self._silent}
                await asyncio.sleep(max(0.5, EVERY_SECONDS - (time.monotonic() - began)))

    async def _ask_job(self, session: aiohttp.ClientSession, job: ObservedJob) -> str | None:
        """The uid of the pod that may say how the job is getting on. The next attempt's begins with a clean slate."""
        # Rank 0 knows the figures of the whole job, and it lives in stage 0.
        first = next(
            (pod for pod in self._store.pods_of(job) if pod.stage == 0 and pod.running and pod.ip), None
        )
        if first is None:
            return None
        times, ask_at = self._silent.get(first.uid, (0, 0.0))
        if time.monotonic() < ask_at:
            return first.uid
        async with self._limit:
            progress = await _ask(session, first)
        if progress is None:
            pause = min(EVERY_SECONDS * 2 ** min(times, 5), LONGEST_SILENCE_SECONDS)
            self._silent[first.uid] = (times + 1, time.monotonic() + pause)
            return first.uid
        self._silent.pop(first.uid, None)
        if self._progress.get(job.uid) != progress:
            self._progress[job.uid] = progress
            self._kick((job.namespace, job.name))
        return first.uid


async def _ask(session: aiohttp.ClientSession, pod: ObservedPod) -> Progress | None:
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    try:
        async with session.get(f"http://{host}:{pod.port}/progress", allow_redirects=False) as answer:
            if answer.status != 200:
                return None
            # Bounded: what runs in a pod is its user's, and may send anything.
            raw = read_said(await answer.content.read(MOST_BYTES))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        log.debug("pod %s does not tell its progress: %s", pod.name, error)
        return None
    return None if raw is None else read_progress(raw)
