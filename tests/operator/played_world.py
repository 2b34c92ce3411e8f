"""A cluster played in memory, with the manners of a real one, that checks each write of the operator on arrival.

Pods live as kubelets let them live: Pending, Running, ended; one that is deleted stays until its node confirms, and
on a lost node nobody does. The world remembers why each attempt really ended, so that the operator's judgement can
be held against it. What the operator sees of all this, and when, is the test's business.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from gnnpipe_api.contract import ENV_MANIFEST, ExitCode
from gnnpipe_api.status import JobStatus
from gnnpipe_operator.actions import DeletePod, EmitEvent
from gnnpipe_operator.cluster import Conflict
from gnnpipe_operator.labels import LABEL_ATTEMPT, PLANNER, stage_of
from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.store import Store

START = datetime(2026, 1, 1, tzinfo=UTC)
FORCE_SECONDS = 60  # beyond its grace period a pod may be forced
GRACE_SECONDS = 60  # of a pod that is deleted without a word about time
PATIENCE_SECONDS = 60  # for a pod that its peers have lost to show what became of it
EVERY_EPOCHS = 10  # checkpoints of the played job


class Died(Exception):
    """The operator was killed."""


class World:
    def __init__(self, job: ObservedJob) -> None:
        self.job = job
        self.exists = True
        self.pods: dict[str, ObservedPod] = {}
        self.manifests: dict[str, dict[str, Any]] = {}  # by pod: what its trainer was told
        self.silent: set[str] = set()  # pods on lost nodes
        self.hung: set[str] = set()  # pods that go on for ever and do nothing
        self.done: dict[int, set[int]] = defaultdict(set)  # attempt -> stages that ended well
        self.plans: dict[
            int, tuple[dict[str, int], int]
        ] = {}  # attempt -> its planner's numbers, and maxRanks
        self.services: set[str] = set()
        self.events: dict[str, EmitEvent] = {}
        self.causes: dict[int, set[str]] = defaultdict(set)  # attempt -> why it really ended
        self.count, self.counted_at = 0, 0  # failures in a row, and the checkpoint at the last of them
        self.seconds = 0.0  # time that really passed
        self.skew = 0.0  # what somebody set the clock forth or back by
        self.jumped = False
        self.version = 1
        self.writes_left: int | None = None
        self.finished_at: float | None = None
        self.deleted_at: float | None = None
        self.store = Store()  # what the operator sees
        self.told_epoch = 0  # what the pods told the operator that lives now

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds + self.skew)

    # --- what happens by itself

    def change_pod(self, name: str, **fields: Any) -> None:
        self.version += 1
        self.pods[name] = dataclasses.replace(self.pods[name], resource_version=self.version, **fields)

    def change_job(self, **fields: Any) -> None:
        self.version += 1
        self.job = dataclasses.replace(self.job, resource_version=self.version, **fields)

    def start_pod(self, name: str) -> None:
        pod = self.pods[name]
        if pod.phase == "Pending" and not pod.deleting:
            self.change_pod(name, phase="Running")

    def end_pod(self, name: str, cause: str, **end: Any) -> None:
        """`cause` is what the attempt is to be blamed on; a pod that the operator itself stops blames nobody."""
        pod = self.pods[name]
        if pod.finished or name in self.silent | self.hung:
            return
        if not pod.deleting:
            self.causes[pod.attempt].add(cause)
        if cause == "done" and not pod.plans:
            self.done[pod.attempt].add(pod.stage)
        told = "exit_code" in end  # an evicted pod is called Failed before it has ended
        self.change_pod(name, **{"phase": "Failed", "finished_at": self.now, "at_rest": told, **end})

    def end_planner(self, name: str, stages: int, *, readable: bool = True) -> None:
        """It has found a plan, of as many stages as it may take; or its last word makes no sense."""
        pod, asked = self.pods[name], self.manifests[name]["parallelism"]
        if pod.finished or name in self.silent:
            return
        stages = min(stages, asked["maxRanks"])
        numbers = {"stages": stages, "ways": 1, "chunks": 4 * stages}
        words = json.dumps({"plan": numbers, "reason": "It is the quickest."}) if readable else "{"
        if readable:
            self.plans[pod.attempt] = numbers, asked["maxRanks"]
        self.end_pod(name, "done" if readable else "error", phase="Succeeded", exit_code=0, message=words)

    def lose_peers(self) -> None:
        """The others notice that one of their gang is gone, silent or dead."""
        pods, away = [pod for pod in self.pods.values() if not pod.plans], self.silent | self.hung
        broken = {pod.attempt for pod in pods if pod.failed or pod.deleting or pod.name in away}
        for pod in pods:
            if pod.attempt in broken and pod.running and not pod.deleting:
                self.end_pod(pod.name, "peer", exit_code=ExitCode.LOST_PEER)

    def delete_by_somebody(self, name: str, *, at_once: bool = False) -> None:
        pod = self.pods[name]
        if at_once:
            self.causes[pod.attempt].add("disruption")
            del self.pods[name]
        elif not pod.deleting:
            self.causes[pod.attempt].add("disruption")
            self.change_pod(name, deletion_deadline=self.now + timedelta(seconds=30))

    def lose_node(self, name: str) -> None:
        pod = self.pods[name]
        if pod.phase == "Running" and not pod.finished:
            self.silent.add(name)
            self.causes[pod.attempt].add("disruption")

    def hang(self, name: str) -> None:
        """Only where one of its gang is left to notice: nobody watches over a job of one pod."""
        pod = self.pods[name]
        others = {pod.name for pod in self.pods.values() if not pod.plans} - {name} - self.silent - self.hung
        if pod.running and others and not pod.plans:
            self.hung.add(name)
            self.causes[pod.attempt].add("error")

    def notice_lost_nodes(self) -> None:
        for name in self.silent & set(self.pods):
            if not self.pods[name].node_lost:
                self.change_pod(name, node_lost=True)

    def confirm_deletions(self) -> None:
        """The kubelets say: it is gone."""
        for pod in list(self.pods.values()):
            if pod.deleting and pod.name not in self.silent:
                del self.pods[pod.name]

    # --- what the operator does

    def _write(self) -> None:
        assert self.exists, "a write about a job that is gone"
        if self.writes_left == 0:
            raise Died
        if self.writes_left is not None:
            self.writes_left -= 1
        self.version += 1

    async def emit(self, job: ObservedJob, event: EmitEvent, now: datetime) -> None:
        self._write()
        self.events.setdefault(event.key, event)

    async def write_status(self, job: ObservedJob, status: JobStatus) -> ObservedJob:
        self._write()
        if job.resource_version != self.job.resource_version:
            raise Conflict("changed")
        status = JobStatus.model_validate(status.as_dict())  # as it would be stored
        self._judge(job, status)
        if status.finished and self.finished_at is None:
            self.finished_at = self.seconds
        self.change_job(status=status)
        return self.job

    async def create_pod(self, job: ObservedJob, body: dict[str, Any]) -> ObservedPod:
        self._write()
        name, labels = body["metadata"]["name"], body["metadata"]["labels"]
        if name in self.pods:
            return self.pods[name]
        stage, attempt = stage_of(labels), int(labels[LABEL_ATTEMPT])
        assert stage is not None, "a pod that nobody finds again"
        env = {entry["name"]: entry.get("value") for entry in body["spec"]["containers"][0]["env"]}
        manifest = json.loads(env[ENV_MANIFEST])["spec"]
        self._may_create(job, stage, attempt, manifest)
        self.manifests[name] = manifest
        self.pods[name] = ObservedPod(
            name=name,
            uid=f"{name}-{self.version}",
            stage=stage,
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
        status = self.job.status
        past = pod.attempt < status.attempt or status.finished
        shrunk = status.plan is not None and pod.stage >= status.plan.stages
        planned = pod.plans and status.plan is not None
        assert past or shrunk or planned, "a pod was deleted before the status said why"
        if deletion.grace_seconds == 0:
            assert pod.deletion_deadline is not None, "forced without having been asked"
            late = (self.now - pod.deletion_deadline).total_seconds()
            assert late >= FORCE_SECONDS, "forced before its time"
            self.silent.discard(pod.name)
        if status.phase == "Suspended" and not pod.finished:
            assert deletion.grace_seconds in (None, 0), "no time for a checkpoint before the suspension"
        if deletion.grace_seconds == 0 or pod.phase == "Pending":
            del self.pods[pod.name]
            return None
        if not pod.deleting:
            grace = GRACE_SECONDS if deletion.grace_seconds is None else deletion.grace_seconds
            self.change_pod(pod.name, deletion_deadline=self.now + timedelta(seconds=grace))
        return self.pods[pod.name]

    async def delete_job(self, job: ObservedJob) -> None:
        self._write()
        status, ttl = self.job.status, job.spec["runPolicy"].get("ttlSecondsAfterFinished")
        assert status.finished, "a job was deleted that is not finished"
        assert status.completion_time is not None
        assert ttl is not None, "a job was deleted that was to stay"
        assert (self.now - status.completion_time).total_seconds() >= ttl, "deleted before its time"
        self.exists, self.deleted_at = False, self.seconds
        self.pods.clear()

    # --- whether it may

    def _may_create(self, job: ObservedJob, stage: int, attempt: int, manifest: dict[str, Any]) -> None:
        status = self.job.status
        assert not status.finished, "pods for a finished job"
        others = {pod.attempt for pod in self.pods.values() if not pod.over} - {attempt}
        assert not others, f"pods of attempt {attempt} were created beside those of {others}"
        refilled = status.attempt == attempt and status.is_true("Created")
        assert not refilled, "a gang that was complete got a new member instead of a restart"
        assert attempt >= status.attempt, "pods of a past attempt"
        assert not job.spec["runPolicy"].get("suspend"), "pods for a suspended job"
        if status.restart_time is not None and status.attempt == attempt:
            assert self.now >= status.restart_time, "the back-off was not respected"
        if status.accepted_spec:
            assert manifest["model"]["layers"] == status.accepted_spec["model"]["layers"], "another model"
        gang = [pod for pod in self.pods.values() if pod.attempt == attempt]
        if stage == PLANNER:
            self._may_plan(gang, manifest["parallelism"])
        else:
            self._may_train(gang, stage, manifest)

    def _may_plan(self, gang: list[ObservedPod], asked: dict[str, Any]) -> None:
        assert "auto" in asked.values(), "there is nothing to plan"
        assert self.job.status.plan is None, "it was planned before"
        assert not gang, "planned beside a gang"

    def _may_train(self, gang: list[ObservedPod], stage: int, manifest: dict[str, Any]) -> None:
        cut, plan = manifest["parallelism"], self.job.status.plan
        assert "auto" not in (cut["stages"], cut["ways"], cut["chunks"]), "a rank would have to plan"
        assert stage < cut["stages"], "more pods than stages"
        assert all(pod.over for pod in gang if pod.plans), "stages beside a pod that still plans"
        told = [self.manifests[pod.name] for pod in gang if not pod.plans]
        assert all(each == manifest for each in told), "stages of one gang with different manifests"
        if "auto" in (self.job.status.accepted_spec or self.job.spec)["parallelism"].values():
            assert plan is not None, "stages before there was a plan"
            assert (cut["stages"], cut["chunks"]) == (plan.stages, plan.chunks), "not the planner's numbers"

    def _judge(self, job: ObservedJob, after: JobStatus) -> None:
        before, policy = job.status, job.spec["runPolicy"]
        assert not before.finished or _end_of(after) == _end_of(before), "a finished job was judged again"
        assert before.attempt <= after.attempt, "an attempt was numbered twice"
        self._judge_plan(before, after)
        true = {c.type for c in after.conditions if c.status == "True"} - {"Created"}
        assert true == {after.phase} - {"Pending"}, "conditions and phase disagree"
        if after.phase == "Succeeded" and before.phase != "Succeeded":
            assert after.plan is not None
            assert len(self.done[after.attempt]) == after.plan.stages, "a success of half a gang"
        if after.phase == "Suspended":
            assert policy.get("suspend"), "suspended by nobody"
        if after.restarts > before.restarts:
            assert (after.phase, after.restarts) == ("Restarting", before.restarts + 1)
            self._judge_failure(job, after)
        elif after.phase == "Failed" and before.phase != "Failed":
            reason = next(c.reason for c in after.conditions if c.type == "Failed")
            if reason == "DeadlineExceeded":
                assert after.start_time is not None
                active = (self.now - after.start_time).total_seconds() - after.suspended_seconds
                assert active >= policy["activeDeadlineSeconds"], "the deadline came early"
            else:
                self._judge_failure(job, after)

    def _judge_plan(self, before: JobStatus, after: JobStatus) -> None:
        """Numbers for auto come from a planner of this attempt and stay, unless a person has it cut anew."""
        was, cut = ((status.accepted_spec or {}).get("parallelism", {}) for status in (before, after))
        if "auto" not in cut.values():
            return
        if before.plan is not None and cut == was:
            assert after.plan == before.plan, "a plan was changed or dropped though nobody asked"
        elif after.plan is not None:
            said = {"stages": after.plan.stages, "ways": after.plan.ways, "chunks": after.plan.chunks}
            assert (said, cut["maxRanks"]) == self.plans.get(after.attempt), "no planner of this cut said so"

    def _judge_failure(self, job: ObservedJob, after: JobStatus) -> None:
        """The world's own verdict on what the operator saw, and its own count of failures in a row."""
        before, limit = job.status, job.spec["runPolicy"]["backoffLimit"]
        seen = self.store.pods_of(job)
        attempt = max([before.attempt, *(pod.attempt for pod in seen)])
        gang = [pod for pod in seen if pod.attempt == attempt and not (pod.plans and before.plan)]
        verdict = _verdict(gang, before)
        if verdict == "invalid":
            assert after.phase == "Failed", "wrong data was tried again"
        elif verdict == "disruption":
            assert (after.phase, after.failures) == ("Restarting", before.failures), (
                "a disruption was counted"
            )
        else:
            assert self.causes[attempt] & {"error", "peer"}, "a failure that never was"
            if not any(pod.failed and pod.exit_code != ExitCode.LOST_PEER for pod in gang):
                self._judge_patience(gang, before)
            reached = max(before.epoch or 0, self.told_epoch)
            saved = reached - reached % EVERY_EPOCHS
            self.count = 1 if saved > self.counted_at else self.count + 1
            self.counted_at = max(self.counted_at, saved)
            assert after.failures == self.count
            wanted = "Restarting" if self.count <= limit else "Failed"
            assert after.phase == wanted, f"{self.count} failures, backoffLimit {limit}"

    def _judge_patience(self, gang: list[ObservedPod], before: JobStatus) -> None:
        if all(pod.finished for pod in gang) or self.jumped:
            return
        assert before.lost_peer_time is not None, "a silent pod was given no time"
        waited = (self.now - before.lost_peer_time).total_seconds()
        assert waited >= PATIENCE_SECONDS, "a silent pod was not given its time"


def _verdict(gang: list[ObservedPod], status: JobStatus) -> str:
    """Why an attempt ended, in the words of docs/operator.md, from what is seen of it."""
    bad = [pod for pod in gang if not pod.succeeded]
    if any(pod.exit_code == ExitCode.INVALID for pod in bad):
        return "invalid"
    judged = [pod for pod in bad if pod.exit_code != ExitCode.LOST_PEER]
    cluster = any(pod.exit_code == ExitCode.PREEMPTED or pod.reason == "Evicted" for pod in judged)
    missing = status.is_true("Created") and len(gang) < (status.plan.stages if status.plan else 1)
    if cluster or missing or any(pod.deleting for pod in judged):
        return "disruption"
    if any(pod.failed for pod in judged):
        return "error"
    return "disruption" if any(pod.node_lost for pod in judged) else "error"


def _end_of(status: JobStatus) -> tuple[Any, ...]:
    return status.phase, status.completion_time, status.message, status.attempt, status.failures
