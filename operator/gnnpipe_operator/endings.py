"""How a job ends, and what is done for it afterwards."""

from __future__ import annotations

from collections.abc import Sequence

from gnnpipe_api.job import RunPolicy
from gnnpipe_operator import cleanup, ttl
from gnnpipe_operator.actions import Decision, DeleteJob
from gnnpipe_operator.edits import accept
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.progress import read_result, with_progress
from gnnpipe_operator.story import Story


def by_attempt(story: Story, pods: Sequence[ObservedPod]) -> tuple[list[ObservedPod], list[ObservedPod]]:
    """The current gang and the pods of past attempts. A lost status is made up from the pods.

    The pod that plans is a gang of its own, until there is a plan: then it belongs to the past.
    """
    attempt = max([story.status.attempt, *(pod.attempt for pod in pods)])
    if attempt != story.status.attempt:
        story.update(attempt=attempt)
    planned = story.status.plan is not None
    gang = [pod for pod in pods if pod.attempt == attempt and not (pod.plans and planned)]
    return sorted(gang, key=lambda pod: pod.stage), [pod for pod in pods if pod not in gang]


def succeed(
    story: Story, gang: Sequence[ObservedPod], stale: Sequence[ObservedPod], policy: RunPolicy
) -> Decision:
    story.status = with_progress(story.status, read_result(gang), story.now, final=True)
    story.event("Normal", "Succeeded", "training is done", "succeeded")
    stages = len(gang)
    story.update(completion_time=story.now, restart_time=None, ready_stages=f"{stages}/{stages}")
    story.tell("Succeeded", "TrainingDone", "", created=True)
    return _end(story, gang, stale, policy)


def fail(
    story: Story,
    reason: str,
    message: str,
    gang: Sequence[ObservedPod],
    stale: Sequence[ObservedPod],
    policy: RunPolicy,
) -> Decision:
    story.event("Warning", reason, message, "failed")
    story.update(completion_time=story.now, restart_time=None, lost_peer_time=None, ready_stages=None)
    story.tell("Failed", reason, message, created=story.status.is_true("Created"))
    return _end(story, gang, stale, policy)


def after_the_end(story: Story, pods: Sequence[ObservedPod]) -> Decision:
    """A finished job is never judged again; only its pods and its time to live are seen to."""
    gang, stale = by_attempt(story, pods)
    accepted = accept(story.job, stopped=False).accepted
    story.update(observed_generation=story.job.generation)
    return _end(story, gang, stale, accepted.job.spec.run_policy if accepted else RunPolicy())


def _end(
    story: Story, gang: Sequence[ObservedPod], stale: Sequence[ObservedPod], policy: RunPolicy
) -> Decision:
    stop(story, stale, cleanup.SURVIVOR_GRACE_SECONDS)
    stop(story, cleanup.leftovers(gang, policy.clean_pods), cleanup.SURVIVOR_GRACE_SECONDS)
    expires = ttl.expiry(story.status.completion_time, policy.ttl_seconds_after_finished)
    if expires is not None and story.now >= expires:
        story.act([DeleteJob(story.job.uid)])
    else:
        story.wake(expires)
    return story.decision()


def stop(story: Story, pods: Sequence[ObservedPod], grace_seconds: int | None) -> None:
    story.act(cleanup.stop(pods, story.now, grace_seconds))
    story.wake(cleanup.next_force(pods))
