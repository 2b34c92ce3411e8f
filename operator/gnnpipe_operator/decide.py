"""The story of a job, top to bottom. Pure: what is there and the time go in, what to do comes out.

Everything it needs to know is in the job's status and in the pods, so the operator may die anywhere: after
a failure the status (with the next attempt's number) is written before pods are deleted, and new pods are
created before the status says so. Either way the same decision follows again from what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gnnpipe_api.job import RunPolicy
from gnnpipe_api.status import PlanStatus
from gnnpipe_operator import deadline
from gnnpipe_operator.actions import Action, CreatePod, CreatePodGroup, CreateService, Decision
from gnnpipe_operator.cleanup import SURVIVOR_GRACE_SECONDS
from gnnpipe_operator.edits import accept
from gnnpipe_operator.endings import after_the_end, by_attempt, fail, stop, succeed
from gnnpipe_operator.labels import MANAGER, PLANNER
from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.planning import plan_first
from gnnpipe_operator.progress import Progress, with_progress
from gnnpipe_operator.setback import after_setback
from gnnpipe_operator.story import Story
from gnnpipe_operator.suspend import pause, resume
from gnnpipe_operator.waiting import Refusal, create, must_wait, passed, say_why_not_running, too_late_to_run


def decide(
    job: ObservedJob,
    pods: Sequence[ObservedPod],
    now: datetime,
    *,
    progress: Progress | None = None,
    refusal: Refusal | None = None,
) -> Decision:
    now = now.replace(microsecond=0)  # as the status stores it, so that a deadline is the same second for all
    story = Story(job, now, job.status)
    if job.deleting:
        return story.decision()  # owner references take the pods; nothing to add
    if _managed_by_another(job):
        return story.decision()
    if job.status.finished:
        return after_the_end(story, pods)

    gang, stale = by_attempt(story, pods)
    if job.status.accepted_spec is None and any(pod.generation != job.generation for pod in gang):
        # The operator died right after creating them, and the spec was edited since: not our gang.
        story.update(attempt=story.status.attempt + 1)
        gang, stale = [], [*stale, *gang]
    if not _accept_spec(story, gang):
        return story.decision()
    assert story.accepted is not None
    policy, plan = story.accepted.job.spec.run_policy, story.accepted.plan
    if plan is None and (job.status.plan or not all(pod.plans for pod in gang)):
        # It is to be cut anew, or the plan was lost: what there is of this attempt was made for another cut.
        story.update(attempt=story.status.attempt + 1)
        gang, stale = [], [*stale, *gang]
    members = range(plan.stages) if plan else [PLANNER]
    stale += [pod for pod in gang if pod.stage not in members]
    gang = [pod for pod in gang if pod.stage in members]

    if plan and len(gang) == plan.stages and all(pod.succeeded for pod in gang):
        return succeed(story, gang, stale, policy)
    if policy.suspend:
        return _suspend(story, gang, stale)
    _resume(story)
    if passed(story, deadline.active_deadline(story.status, policy.active_deadline_seconds)):
        limit = policy.active_deadline_seconds
        message = f"the job was active for {limit} seconds, spec.runPolicy.activeDeadlineSeconds"
        return fail(story, "DeadlineExceeded", message, gang, stale, policy)
    if plan is None:
        return plan_first(story, gang, stale, policy, progress, refusal)
    setback = after_setback(story, gang, stale, members, policy, progress)
    if setback:
        return setback
    stop(story, stale, SURVIVOR_GRACE_SECONDS)
    if len(gang) < plan.stages:
        if must_wait(story, stale):
            return story.decision()
        return create(story, _missing(story, gang, plan.stages, policy), gang, policy, refusal)
    return _watch(story, gang, plan.stages, policy, progress)


def _managed_by_another(job: ObservedJob) -> bool:
    """Read from the raw spec: whether it is valid is then the other controller's business."""
    policy = job.spec.get("runPolicy")
    manager = policy.get("managedBy") if isinstance(policy, dict) else None
    return manager not in (None, MANAGER)


def _accept_spec(story: Story, gang: Sequence[ObservedPod]) -> bool:
    """Settles which spec is in force; False where there is none and the job fails."""
    job, status = story.job, story.status
    stopped = not gang and (status.is_true("Suspended") or not status.is_true("Created"))
    acceptance = accept(job, stopped)
    if acceptance.accepted is None:
        fail(story, "InvalidSpec", acceptance.refused, gang, [], RunPolicy())
        return False
    story.accepted = acceptance.accepted
    numbers, reason = acceptance.accepted.plan, acceptance.accepted.reason
    plan = PlanStatus.model_validate({**numbers.as_dict(), "reason": reason}) if numbers else None
    story.update(accepted_spec=acceptance.accepted.spec, plan=plan, observed_generation=job.generation)
    if acceptance.refused and job.generation != status.observed_generation:
        story.event("Warning", "EditRefused", acceptance.refused, f"edit-{job.generation}")
    return True


def _suspend(story: Story, gang: Sequence[ObservedPod], stale: Sequence[ObservedPod]) -> Decision:
    if not story.status.is_true("Suspended"):
        message = "pods are stopped; the checkpoint is kept"
        story.event("Normal", "Suspended", message, f"suspended-{story.job.generation}")
    gang_exists = bool(gang) or story.status.is_true("Created")
    story.status = pause(story.status, story.now, gang_exists)
    stop(story, [*gang, *stale], grace_seconds=None)
    story.update(ready_stages=None)
    story.tell("Suspended", "Suspended", "spec.runPolicy.suspend is true", created=False)
    return story.decision()


def _resume(story: Story) -> None:
    if story.status.is_true("Suspended"):
        story.event(
            "Normal", "Resumed", "goes on from the last checkpoint", f"resumed-{story.job.generation}"
        )
    story.status = resume(story.status, story.now)


def _missing(story: Story, gang: Sequence[ObservedPod], stages: int, policy: RunPolicy) -> list[Action]:
    """Stage 0 goes ahead: where the API server refuses it, nothing else was created for nothing. The other pods come
    last: a gang that is complete has all that it needs, also when the operator dies in between."""
    there = {pod.stage for pod in gang}
    pods = [CreatePod(stage, story.status.attempt) for stage in range(stages) if stage not in there]
    ahead = pods[:1] if 0 not in there else []
    grouped = policy.scheduling.gang in ("volcano", "scheduler-plugins")
    return [
        *(
            [CreatePodGroup(policy.scheduling.gang)] if grouped else []
        ),  # a pod without it may be placed alone
        *ahead,
        *([CreateService()] if stages > 1 else []),
        *pods[len(ahead) :],
    ]


def _watch(
    story: Story, gang: Sequence[ObservedPod], stages: int, policy: RunPolicy, progress: Progress | None
) -> Decision:
    """All pods are there. Do they run?"""
    before, attempt = story.job.status, story.status.attempt
    if not before.is_true("Created"):
        pods = f"{stages} pods, one per stage" if stages > 1 else "one pod"
        story.event("Normal", "Created", f"attempt {attempt}: {pods}", f"created-{attempt}")
        _warn_of_no_checkpoint(story, policy)
        story.update(attempt_start_time=story.now, restart_time=None)
    ready = sum(pod.running or pod.succeeded for pod in gang)
    if ready == stages:
        if not before.is_true("Running"):
            run = f"all {stages} stages run" if stages > 1 else "it runs"
            story.event("Normal", "Running", f"attempt {attempt}: {run}", f"running-{attempt}")
        story.tell("Running", "AllStagesRun", "", created=True)
        story.status = with_progress(story.status, progress, story.now)
    else:
        too_late = too_late_to_run(story, gang, policy)
        if too_late:
            return too_late
        say_why_not_running(story, gang)
    if ready == stages or story.status.phase != before.phase or not before.is_true("Created"):
        story.update(ready_stages=f"{ready}/{stages}")  # on its own it is not worth a write
    return story.decision()


def _warn_of_no_checkpoint(story: Story, policy: RunPolicy) -> None:
    assert story.accepted is not None
    if story.status.attempt > 0 or policy.backoff_limit == 0 or story.accepted.job.spec.checkpoint.volume:
        return
    message = (
        "spec.checkpoint.volume is not set: checkpoints end with the pods, and a restart begins at epoch 0; "
        "name a volume, or set spec.runPolicy.backoffLimit to 0"
    )
    story.event("Warning", "NoCheckpointVolume", message, "no-checkpoint-volume")
