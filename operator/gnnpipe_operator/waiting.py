"""What keeps a job's pods from being made, or from running once they are: how it is told, and how long it may last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gnnpipe_api.job import RunPolicy
from gnnpipe_operator import deadline
from gnnpipe_operator.actions import Action, Decision
from gnnpipe_operator.conditions import spoken_reason
from gnnpipe_operator.endings import fail
from gnnpipe_operator.failure import why_waiting
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.story import Story


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server would not create a pod: for good (the template is wrong) or for now (a quota)."""

    message: str
    final: bool
    retry_at: datetime


def must_wait(story: Story, stale: Sequence[ObservedPod]) -> bool:
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


def create(
    story: Story,
    missing: Iterable[Action],
    gang: Sequence[ObservedPod],
    policy: RunPolicy,
    refusal: Refusal | None,
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
    cut_anew = before.plan is not None and story.status.plan is None
    if cut_anew or before.accepted_spec not in (None, story.status.accepted_spec):
        # An edit came into force. It is settled first, or a crash now would leave pods of an unknown spec.
        story.tell("Pending", "PodsMissing", "", created=False)
        return story.decision()
    story.act(missing)
    story.status, story.events = before, []
    return story.decision()


def say_why_not_running(story: Story, gang: Sequence[ObservedPod]) -> None:
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
        who = (
            "plan-" if any(pod.plans for pod in gang) else ""
        )  # the gang of the same attempt has its own news
        story.event("Warning", waiting.reason, message, f"{waiting.reason}-{who}{attempt}".lower())
    story.tell(phase, waiting.reason, message, created=True)  # type: ignore[arg-type]


def too_late_to_run(story: Story, gang: Sequence[ObservedPod], policy: RunPolicy) -> Decision | None:
    """The job's end where its pods take too long to run; None while there is time, or all the time."""
    limit = policy.pre_running_deadline_seconds
    if not passed(story, deadline.pre_running_deadline(story.status, limit)):
        return None
    waiting = why_waiting(gang)
    message = f"not all pods ran within {limit} seconds, spec.runPolicy.preRunningDeadlineSeconds"
    if waiting:
        message += f"; {waiting.reason}: {waiting.message}"
    return fail(story, "PreRunningDeadlineExceeded", message, gang, [], policy)


def passed(story: Story, at: datetime | None) -> bool:
    """Whether a deadline is over; if not, asks to be woken for it."""
    if at is None or story.now >= at:
        return at is not None
    story.wake(at)
    return False
