"""Random histories: whatever pods, people, clocks and crashes do, and in whatever order, a job converges.

The real reconciler runs against a cluster played in memory. It may die after any of its writes, miss any watch
event, and see any clock. GNNPIPE_HISTORIES sets how many histories are tried.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnnpipe_api.status import JobStatus
from gnnpipe_operator.actions import DeletePod, EmitEvent
from gnnpipe_operator.cluster import Conflict
from gnnpipe_operator.labels import LABEL_ATTEMPT, LABEL_STAGE
from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.reconcile import Reconciler
from gnnpipe_operator.store import Store

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = ("team", "cora")
MOST_STAGES = 3
ENDS: list[dict[str, Any]] = [
    {"phase": "Failed", "exit_code": 1, "message": "KeyError: x"},
    {"phase": "Failed", "exit_code": 137, "reason": "OOMKilled"},
    {"phase": "Failed", "exit_code": 75},
    {"phase": "Failed", "reason": "Evicted"},
    {"phase": "Failed", "reason": "NodeLost"},
    {"phase": "Succeeded", "exit_code": 0},
]


class Died(Exception):
    """The operator was killed."""


class PlayedCluster:
    """The API server's side. Counts writes down to the operator's death."""

    def __init__(self, job: ObservedJob) -> None:
        self.job = job
        self.pods: dict[str, ObservedPod] = {}
        self.now = START
        self.version = 1
        self.writes_left: int | None = None
        self.deleted_by_ttl = False
        self.services: set[str] = set()

    def _write(self) -> None:
        if self.writes_left == 0:
            raise Died
        if self.writes_left is not None:
            self.writes_left -= 1
        self.version += 1

    def change_pod(self, name: str, **fields: Any) -> None:
        self.version += 1
        self.pods[name] = dataclasses.replace(self.pods[name], resource_version=self.version, **fields)

    def change_job(self, **fields: Any) -> None:
        self.version += 1
        self.job = dataclasses.replace(self.job, resource_version=self.version, **fields)

    async def emit(self, job: ObservedJob, event: EmitEvent, now: datetime) -> None:
        self._write()

    async def write_status(self, job: ObservedJob, status: JobStatus) -> ObservedJob:
        self._write()
        if job.resource_version != self.job.resource_version:
            raise Conflict("changed")
        before = self.job.status
        assert not before.finished or status.phase == before.phase, "a finished job was judged again"
        assert status.attempt >= before.attempt, "an attempt number was used twice"
        # Through JSON, as it would be stored.
        self.change_job(status=JobStatus.model_validate(status.as_dict()))
        return self.job

    async def create_pod(self, job: ObservedJob, body: dict[str, Any]) -> ObservedPod:
        self._write()
        name, labels = body["metadata"]["name"], body["metadata"]["labels"]
        if name in self.pods:
            return self.pods[name]
        attempt = int(labels[LABEL_ATTEMPT])
        others = {pod.attempt for pod in self.pods.values()} - {attempt}
        assert not others, f"pods of attempt {attempt} were created beside those of {others}"
        told = self.job.status
        refilled = told.attempt == attempt and told.is_true("Created")
        assert not refilled, "a gang that was complete got a new member instead of a restart"
        self.pods[name] = ObservedPod(
            name=name,
            uid=f"{name}-{self.version}",
            stage=int(labels[LABEL_STAGE]),
            attempt=attempt,
            created=self.now,
            resource_version=self.version,
            owner_uid=job.uid,
            generation=job.generation,
        )
        return self.pods[name]

    async def create(self, job: ObservedJob, body: dict[str, Any]) -> None:
        self._write()
        self.services.add(body["metadata"]["name"])

    async def delete_pod(self, job: ObservedJob, deletion: DeletePod) -> ObservedPod | None:
        self._write()
        pod = self.pods.get(deletion.name)
        if pod is None or pod.uid != deletion.uid:
            return None
        if deletion.grace_seconds == 0 or pod.phase == "Pending":
            del self.pods[pod.name]
            return None
        grace = 60 if deletion.grace_seconds is None else deletion.grace_seconds
        if not pod.deleting:
            self.change_pod(pod.name, deletion_deadline=self.now + timedelta(seconds=grace))
        return self.pods[pod.name]

    async def delete_job(self, job: ObservedJob) -> None:
        self._write()
        self.deleted_by_ttl = True


class Histories(RuleBasedStateMachine):
    @initialize(
        stages=st.integers(1, MOST_STAGES),
        backoff_limit=st.integers(0, 2),
        deadline=st.sampled_from([None, None, 600]),
    )
    def apply(self, stages: int, backoff_limit: int, deadline: int | None) -> None:
        self.runner = asyncio.Runner()
        self.stages = stages
        policy: dict[str, Any] = {"backoffLimit": backoff_limit}
        if deadline:
            policy["activeDeadlineSeconds"] = deadline
        spec = {
            "graph": {"source": "synthetic"},
            "model": {"kind": "gcn", "layers": 8},
            "parallelism": {"stages": stages},
            "runPolicy": policy,
        }
        job = ObservedJob("cora", "team", "job-uid", START, spec, resource_version=1)
        self.cluster = PlayedCluster(job)
        self.start_operator()

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.settle()
            self.runner.close()

    # --- the operator

    def start_operator(self) -> None:
        self.store = Store()
        self.reconciler = Reconciler(self.store, self.cluster, "image", clock=lambda: self.cluster.now)
        self.watch()

    @rule()
    def watch(self) -> None:
        """All events come through. Without this step they do not: that is a lost watch."""
        self.store.put_job(self.cluster.job)
        there = {pod.uid for pod in self.cluster.pods.values()}
        for pod in self.cluster.pods.values():
            self.store.put_pod(KEY, pod)
        for uid in set(self.store.versions("pods")) - there:
            self.store.drop_pod(KEY, uid)

    @rule(writes=st.none() | st.integers(0, 6))
    def reconcile(self, writes: int | None) -> None:
        """With a number: the operator dies after so many writes, and another takes its place."""
        self.cluster.writes_left = writes
        try:
            self.wake_at = self.runner.run(self.reconciler.reconcile(KEY))
        except Died:
            self.cluster.writes_left = None
            self.start_operator()
        self.cluster.writes_left = None

    # --- the cluster

    def some_pod(self, data: st.DataObject) -> ObservedPod:
        return self.cluster.pods[data.draw(st.sampled_from(sorted(self.cluster.pods)))]

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data())
    def a_pod_starts(self, data: st.DataObject) -> None:
        pod = self.some_pod(data)
        if pod.phase == "Pending":
            self.cluster.change_pod(pod.name, phase="Running")

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data(), end=st.sampled_from(ENDS))
    def a_pod_ends(self, data: st.DataObject, end: dict[str, Any]) -> None:
        pod = self.some_pod(data)
        if not pod.finished:
            self.cluster.change_pod(pod.name, **end, finished_at=self.cluster.now)

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data())
    def a_pod_is_deleted_by_somebody(self, data: st.DataObject) -> None:
        pod = self.some_pod(data)
        if not pod.deleting:
            self.cluster.change_pod(pod.name, deletion_deadline=self.cluster.now + timedelta(seconds=30))

    @precondition(lambda self: self.cluster.pods)
    @rule(data=st.data())
    def a_pod_vanishes(self, data: st.DataObject) -> None:
        del self.cluster.pods[self.some_pod(data).name]

    # --- people and time

    @rule(suspend=st.booleans())
    def somebody_suspends_or_resumes(self, suspend: bool) -> None:
        self.edit(runPolicy={**self.cluster.job.spec["runPolicy"], "suspend": suspend})

    @rule(stages=st.integers(1, MOST_STAGES))
    def somebody_cuts_anew(self, stages: int) -> None:
        self.edit(parallelism={"stages": stages})

    def edit(self, **parts: Any) -> None:
        spec = {**self.cluster.job.spec, **parts}
        if spec != self.cluster.job.spec:
            self.cluster.change_job(spec=spec, generation=self.cluster.job.generation + 1)

    @rule(seconds=st.integers(1, 400))
    def time_passes(self, seconds: int) -> None:
        self.cluster.now += timedelta(seconds=seconds)

    @rule(seconds=st.integers(-3600, 3600))
    def the_clock_jumps(self, seconds: int) -> None:
        self.cluster.now += timedelta(seconds=seconds)

    # --- what must hold at every moment

    @invariant()
    def there_are_never_more_pods_than_stages(self) -> None:
        if hasattr(self, "cluster"):
            assert len(self.cluster.pods) <= MOST_STAGES
            by_stage = [(pod.stage, pod.attempt) for pod in self.cluster.pods.values()]
            assert len(set(by_stage)) == len(by_stage)
            assert len({pod.attempt for pod in self.cluster.pods.values()}) <= 1

    @invariant()
    def one_phase_is_true(self) -> None:
        if hasattr(self, "cluster") and self.cluster.job.status.conditions:
            true = {c.type for c in self.cluster.job.status.conditions if c.status == "True"} - {"Created"}
            assert true == {self.cluster.job.status.phase} - {"Pending"}

    # --- and in the end

    def settle(self) -> None:
        """A cluster that works, an operator that sees, nobody who meddles: the job must get somewhere."""
        self.edit(runPolicy={**self.cluster.job.spec["runPolicy"], "suspend": False})
        for _ in range(60):
            self.kubelet()
            self.watch()
            wake = self.runner.run(self.reconciler.reconcile(KEY))
            self.watch()
            status = self.cluster.job.status
            if status.finished or status.phase == "Running":
                break
            if wake:
                self.cluster.now = max(self.cluster.now, wake)
        self.check_the_end()

    def kubelet(self) -> None:
        for pod in list(self.cluster.pods.values()):
            if pod.deleting:
                del self.cluster.pods[pod.name]
            elif pod.phase == "Pending":
                self.cluster.change_pod(pod.name, phase="Running")

    def check_the_end(self) -> None:
        status = self.cluster.job.status
        assert status.finished or status.phase == "Running", status
        alive = [pod for pod in self.cluster.pods.values() if not pod.deleting and not pod.finished]
        assert all(pod.attempt == status.attempt for pod in alive), "a survivor of a dead attempt"
        if status.phase == "Running":
            assert status.plan is not None
            assert len(self.cluster.pods) == status.plan.stages
            assert status.plan.stages == 1 or self.cluster.services, "the ranks cannot find each other"
        else:
            assert not alive, "a finished job holds a GPU"
        quiet = self.cluster.version
        self.runner.run(self.reconciler.reconcile(KEY))
        assert self.cluster.version == quiet, "the operator keeps writing though nothing happens"


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=int(os.environ.get("GNNPIPE_HISTORIES", "200")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
