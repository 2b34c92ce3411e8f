"""An attempt that cannot go on: what ended it, and whether another one follows."""

from __future__ import annotations

from collections.abc import Sequence

from gnnpipe_api.job import RunPolicy
from gnnpipe_operator.actions import Decision
from gnnpipe_operator.cleanup import SURVIVOR_GRACE_SECONDS
from gnnpipe_operator.culprit import PATIENCE, culprit
from gnnpipe_operator.endings import fail, stop
from gnnpipe_operator.failure import Failure, Kind, first_failure, lost_pod
from gnnpipe_operator.labels import pod_name
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.progress import Progress
from gnnpipe_operator.restart import after_failure, failures_before, last_saved_epoch
from gnnpipe_operator.story import Story


def after_setback(
    story: Story,
    gang: Sequence[ObservedPod],
    stale: Sequence[ObservedPod],
    members: Sequence[int],
    policy: RunPolicy,
    progress: Progress | None,
) -> Decision | None:
    """None: the gang is well. `members` are the stages that it has, or PLANNER alone."""
    failure = _failure(story, gang, members)
    if failure is None:
        return None
    if failure.kind is Kind.VICTIM:
        return _await_the_culprit(story, failure, stale)
    return restart_or_fail(story, failure, gang, stale, policy, progress)


def _failure(story: Story, gang: Sequence[ObservedPod], members: Sequence[int]) -> Failure | None:
    """What ended the attempt; of kind VICTIM while nobody knows yet."""
    found = [failure for failure in (first_failure(gang), _lost(story, gang, members)) if failure]
    failure = min(found, key=lambda each: each.kind, default=None)
    if failure is None or failure.kind is not Kind.VICTIM:
        return failure
    return culprit(failure, gang, story.status.lost_peer_time or story.now, story.now) or failure


def _await_the_culprit(story: Story, victim: Failure, stale: Sequence[ObservedPod]) -> Decision:
    since = story.status.lost_peer_time or story.now
    story.update(lost_peer_time=since, ready_stages=None)
    message = f"{victim.message}; what became of the others is not known yet"
    story.tell("Restarting", victim.reason, message, created=True)
    story.wake(since + PATIENCE)
    stop(story, stale, SURVIVOR_GRACE_SECONDS)
    return story.decision()


def _lost(story: Story, gang: Sequence[ObservedPod], members: Sequence[int]) -> Failure | None:
    """A gang that was complete and no longer is: somebody deleted a pod, or a node took it along."""
    if not story.status.is_true("Created"):
        return None
    there = {pod.stage for pod in gang}
    missing = next((stage for stage in members if stage not in there), None)
    if missing is None:
        return None
    return lost_pod(missing, pod_name(story.job.name, missing, story.status.attempt))


def restart_or_fail(
    story: Story,
    failure: Failure,
    gang: Sequence[ObservedPod],
    stale: Sequence[ObservedPod],
    policy: RunPolicy,
    progress: Progress | None,
) -> Decision:
    status = story.status
    saved = _saved_epoch(story, progress)
    verdict = after_failure(failure, failures_before(status, saved), policy.backoff_limit, story.now)
    story.update(last_failure=failure.message, lost_peer_time=None)
    if failure.kind is Kind.ERROR:
        story.update(failures=verdict.failures, failure_epoch=_larger(status.failure_epoch, saved))
    if verdict.restart_at is None:
        return fail(story, verdict.reason, verdict.message, gang, stale, policy)
    story.event("Warning", "Restarting", f"{verdict.reason}: {verdict.message}", f"restart-{status.attempt}")
    story.update(
        attempt=status.attempt + 1,
        restarts=status.restarts + 1,
        restart_time=verdict.restart_at,
        attempt_start_time=None,
        ready_stages=None,
    )
    story.tell("Restarting", verdict.reason, verdict.message, created=False)
    stop(story, [*gang, *stale], SURVIVOR_GRACE_SECONDS)
    story.wake(verdict.restart_at)
    return story.decision()


def _saved_epoch(story: Story, progress: Progress | None) -> int | None:
    assert story.accepted is not None
    reached = _larger(story.status.epoch, progress.epoch if progress else None)
    return last_saved_epoch(story.accepted.job.spec.checkpoint, reached)


def _larger(one: int | None, other: int | None) -> int | None:
    return max((epoch for epoch in (one, other) if epoch is not None), default=None)
