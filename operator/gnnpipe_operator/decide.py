"""The story of a job, top to bottom. Pure: what is there and the time go in, what to do comes out.

Everything it needs to know is in the job's status and in the pods, so the operator may die anywhere: after
a failure the status (with the next attempt's number) is written before pods are deleted, and new pods are
created before the status says so. Either way the same decision follows again from what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gnnpipe_api.job import RunPolicy
from gnnpipe_api.status import PlanStatus
from gnnpipe_operator import deadline
from gnnpipe_operator.actions import CreatePod, CreatePodGroup, CreateService, Decision
from gnnpipe_operator.cleanup import SURVIVOR_GRACE_SECONDS
from gnnpipe_operator.conditions import spoken_reason
from gnnpipe_operator.edits import accept
from gnnpipe_operator.endings import after_the_end, by_attempt, fail, stop, succeed
from gnnpipe_operator.failure import why_waiting
from gnnpipe_operator.labels import MANAGER
from gnnpipe_operator.observed import ObservedJob, ObservedPod
from gnnpipe_operator.progress import Progress, with_progress
from gnnpipe_operator.setback import after_setback
from gnnpipe_operator.story import Story
from gnnpipe_operator.suspend import pause, resume


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server would not create a pod: for good (the template is wrong) or for now (a quota)."""

    message: str
    final: bool
    retry_at: datetime


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
    policy, stages = story.accepted.job.spec.run_policy, story.accepted.plan.stages
    stale += [pod for pod in gang if pod.stage >= stages]
    gang = [pod for pod in gang if pod.stage < stages]

    if len(gang) == stages and all(pod.succeeded for pod in gang):
        return succeed(story, gang, stale, policy)
    if policy.suspend:
        return _suspend(story, gang, stale)
    _resume(story)
    if _passed(story, deadline.active_deadline(story.status, policy.active_deadline_seconds)):
        limit = policy.active_deadline_seconds
        message = f"the job was active for {limit} seconds, spec.runPolicy.activeDeadlineSeconds"
        return fail(story, "DeadlineExceeded", message, gang, stale, policy)
    setback = after_setback(story, gang, stale, stages, policy, progress)
    if setback:
        return setback
    stop(story, stale, SURVIVOR_GRACE_SECONDS)
    if len(gang) < stages:
        if _must_wait(story, stale):
            return story.decision()
        return _create(story, gang, stages, policy, refusal)
    return _watch(story, gang, stages, policy, progress)


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
    plan = PlanStatus.model_validate(acceptance.accepted.plan.as_dict())
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


def _must_wait(story: Story, stale: Sequence[ObservedPod]) -> bool:
    """Never two attempts at once: the old pods must have ended, and the back-off be over."""
    restart_at = story.status.restart_time
    backing_off = restart_at is not None and story.now < restart_at
    if backing_off:
        story.wake(restart_at)
    stopping = not all(pod.over for pod in stale)
    if stopping and not story.status.is_true("Restarting"):
        story.tell(
            "Pending", "PodsStopping", "the pods of the attempt before are still stopping", created=False
        )
    return backing_off or stopping


def _create(
    story: Story, gang: Sequence[ObservedPod], stages: int, policy: RunPolicy, refusal: Refusal | None
) -> Decision:
    """Creates what is missing. The status waits until the pods are there: they are the better memory."""
    if refusal and refusal.final:
        return fail(story, "InvalidSpec", refusal.message, gang, [], policy)
    if refusal and story.now < refusal.retry_at:
        restarting = story.status.is_true("Restarting")
        story.tell("Restarting" if restarting else "Pending", "PodRefused", refusal.message, created=False)
        story.wake(refusal.retry_at)
        story.wake(deadline.active_deadline(story.status, policy.active_deadline_seconds))
        return story.decision()
    before = story.job.status
    if before.accepted_spec not in (None, story.status.accepted_spec):
        # An edit came into force. It is settled first, or a crash now would leave pods of an unknown spec.
        story.tell("Pending", "PodsMissing", "", created=False)
        return story.decision()
    there = {pod.stage for pod in gang}
    missing = [CreatePod(stage, story.status.attempt) for stage in range(stages) if stage not in there]
    # Stage 0 goes ahead: where the API server refuses it, nothing else was created for nothing. The other
    # pods come last: a gang that is complete has all that it needs, also when the operator dies in between.
    ahead = missing[:1] if 0 not in there else []
    if policy.scheduling.gang in ("volcano", "scheduler-plugins"):
        story.act([CreatePodGroup(policy.scheduling.gang)])  # a pod without its group may be placed alone
    story.act(ahead)
    if stages > 1:
        story.act([CreateService()])
    story.act(missing[len(ahead) :])
    story.status, story.events = before, []
    return story.decision()


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
        at = deadline.pre_running_deadline(story.status, policy.pre_running_deadline_seconds)
        if _passed(story, at):
            return _too_late_to_run(story, gang, policy)
        _say_why_not_running(story, gang)
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


def _say_why_not_running(story: Story, gang: Sequence[ObservedPod]) -> None:
    status, attempt = story.status, story.status.attempt
    phase = "Restarting" if status.is_true("Restarting") else "Pending"
    waiting = why_waiting(gang)
    if waiting is None:
        last = f"after: {status.last_failure}" if phase == "Restarting" and status.last_failure else ""
        story.tell(phase, "PodsStarting", last, created=True)  # type: ignore[arg-type]
        return
    message = waiting.message
    if spoken_reason(status) == waiting.reason and status.message:
        message = status.message  # the first words name the cause; later ones only say "backing off"
    else:
        story.event("Warning", waiting.reason, message, f"{waiting.reason}-{attempt}".lower())
    story.tell(phase, waiting.reason, message, created=True)  # type: ignore[arg-type]


def _too_late_to_run(story: Story, gang: Sequence[ObservedPod], policy: RunPolicy) -> Decision:
    waiting = why_waiting(gang)
    limit = policy.pre_running_deadline_seconds
    message = f"not all stages ran within {limit} seconds, spec.runPolicy.preRunningDeadlineSeconds"
    if waiting:
        message += f"; {waiting.reason}: {waiting.message}"
    return fail(story, "PreRunningDeadlineExceeded", message, gang, [], policy)


def _passed(story: Story, at: datetime | None) -> bool:
    """Whether a deadline is over; if not, asks to be woken for it."""
    if at is None or story.now >= at:
        return at is not None
    story.wake(at)
    return False
