"""Carries out what `decide` says, for one job at a time: events, status, actions, in this order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from gnnpipe_operator.actions import (
    Action,
    CreatePod,
    CreatePodGroup,
    CreateService,
    Decision,
    DeleteJob,
    DeletePod,
)
from gnnpipe_operator.build_planner import build_planner
from gnnpipe_operator.build_pod import build_pod
from gnnpipe_operator.build_podgroup import build_podgroup
from gnnpipe_operator.build_service import build_service
from gnnpipe_operator.cluster import Cluster, Conflict, Gone, Refused
from gnnpipe_operator.decide import decide
from gnnpipe_operator.labels import PLANNER
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.progress import Progress
from gnnpipe_operator.store import Key, Store
from gnnpipe_operator.waiting import Refusal

log = logging.getLogger(__name__)

REFUSED_RETRY = timedelta(seconds=10)
CONFLICT_RETRY = timedelta(seconds=0.5)  # the event that tells of the change usually comes before
CREATIONS = (CreatePod, CreateService, CreatePodGroup)
REVISIT = timedelta(minutes=5)  # how long an unfinished job is left alone at most, whatever was missed
MOST_ROUNDS = 5  # creating, then telling, then perhaps failing: more in one go would be a loop


def utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    def __init__(
        self, store: Store, cluster: Cluster, image: str, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._image = image
        self._clock = clock
        self._refusals: dict[str, Refusal] = {}  # by the job's uid; lost in a crash, and then found out again
        self.progress: dict[str, Progress] = {}  # by the job's uid; what the pods said last

    async def reconcile(self, key: Key) -> datetime | None:
        """Brings one job a step on. Says when to look again at the latest; events may ask for it before."""
        try:
            for _ in range(MOST_ROUNDS):
                job = self._store.job(key)
                if job is None:
                    return None
                decision = self._decide(job)
                if not await self._carry_out(job, decision):
                    return decision.wake_at or self._revisit(decision)
        except Conflict:
            return self._clock() + CONFLICT_RETRY
        except Gone:
            return None
        return self._clock()

    def _revisit(self, decision: Decision) -> datetime | None:
        return None if decision.status.finished else self._clock() + REVISIT

    def forget(self, uid: str) -> None:
        self._refusals.pop(uid, None)
        self.progress.pop(uid, None)

    def _decide(self, job: ObservedJob) -> Decision:
        now = self._clock()
        refusal = self._refusals.get(job.uid)
        if refusal and not refusal.final and now >= refusal.retry_at:
            del self._refusals[job.uid]
            refusal = None
        progress = self.progress.get(job.uid)
        return decide(job, self._store.pods_of(job), now, progress=progress, refusal=refusal)

    async def _carry_out(self, job: ObservedJob, decision: Decision) -> bool:
        """True: the world is another now, so decide again at once and do not wait for our own echo."""
        for event in decision.events:
            await self._cluster.emit(job, event, self._clock())
        changed = decision.status != job.status
        if changed:
            log.info("%s/%s: %s", job.namespace, job.name, _summary(decision))
            job = await self._cluster.write_status(job, decision.status)
            self._store.put_job(job)
        creations = [action for action in decision.actions if isinstance(action, CREATIONS)]
        for action in decision.actions:
            if isinstance(action, DeletePod):
                await self._delete_pod(job, action)
            elif isinstance(action, DeleteJob):
                await self._cluster.delete_job(job)
                return False
        if not creations:
            return changed
        try:
            await self._create_all(job, decision, creations)
        except Refused as refused:
            retry_at = self._clock() + REFUSED_RETRY
            self._refusals[job.uid] = Refusal(str(refused), refused.final, retry_at)
        return True

    async def _create_all(self, job: ObservedJob, decision: Decision, creations: Sequence[Action]) -> None:
        """In turn until the first pod and all that is no pod are there, then the other pods together."""
        first = next((action for action in creations if isinstance(action, CreatePod)), None)
        one_by_one = [a for a in creations if a is first or not isinstance(a, CreatePod)]
        for action in one_by_one:
            await self._create(job, decision, action)
        together = [action for action in creations if action not in one_by_one]
        tasks = [self._create(job, decision, action) for action in together]
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _delete_pod(self, job: ObservedJob, deletion: DeletePod) -> None:
        left = await self._cluster.delete_pod(job, deletion)
        key = job.namespace, job.name
        if left is None:
            self._store.drop_pod(key, deletion.uid)
        else:
            self._store.put_pod(key, left)

    async def _create(self, job: ObservedJob, decision: Decision, action: Action) -> None:
        assert decision.accepted is not None
        if isinstance(action, CreatePod):
            if action.stage == PLANNER:
                body = build_planner(job, decision.accepted, action.attempt, self._image)
            else:
                body = build_pod(job, decision.accepted, action.stage, action.attempt, self._image)
            pod = await self._cluster.create_pod(job, body)
            self._store.put_pod((job.namespace, job.name), pod)
        elif isinstance(action, CreateService):
            await self._cluster.create(job, build_service(job))
        elif isinstance(action, CreatePodGroup):
            await self._cluster.create(job, build_podgroup(job, decision.accepted))


def _summary(decision: Decision) -> str:
    status = decision.status
    words = f"{status.phase}, attempt {status.attempt}"
    return f"{words}: {status.message}" if status.message else words
