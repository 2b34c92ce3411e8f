"""The first chapter of a job that says `auto`: a pod that can see the graph finds out how to cut it.

The pod is a gang of one, with the attempts, restarts and deadlines of any other; it ends by leaving a plan. The plan
is written into the status before the pod is deleted. From then on the job reads like one whose numbers a person wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnpipe_api.job import GNNPipeJob, RunPolicy
from gnnpipe_api.plan import Plan, make_plan, most_ranks, with_numbers
from gnnpipe_api.status import PlanStatus
from gnnpipe_operator.actions import CreatePod, Decision
from gnnpipe_operator.cleanup import SURVIVOR_GRACE_SECONDS
from gnnpipe_operator.endings import stop
from gnnpipe_operator.failure import MESSAGE_LIMIT, Failure, Kind, name_of, why_waiting
from gnnpipe_operator.labels import PLANNER
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.progress import Progress
from gnnpipe_operator.said import read_said
from gnnpipe_operator.setback import after_setback, restart_or_fail
from gnnpipe_operator.story import Story
from gnnpipe_operator.waiting import Refusal, create, must_wait, say_why_not_running, too_late_to_run


def plan_first(
    story: Story,
    gang: Sequence[ObservedPod],
    stale: Sequence[ObservedPod],
    policy: RunPolicy,
    progress: Progress | None,
    refusal: Refusal | None,
) -> Decision:
    """`gang` holds the pod that plans, or nobody. `progress` is that of attempts before it was to be cut anew."""
    setback = after_setback(story, gang, stale, [PLANNER], policy, progress)
    if setback:
        return setback
    if gang and gang[0].succeeded:
        return _take_over(story, gang[0], stale, policy, progress)
    stop(story, stale, SURVIVOR_GRACE_SECONDS)
    if not gang:
        if must_wait(story, stale):
            return story.decision()
        return create(story, [CreatePod(PLANNER, story.status.attempt)], gang, policy, refusal)
    return _watch(story, gang, policy)


def _take_over(
    story: Story,
    planner: ObservedPod,
    stale: Sequence[ObservedPod],
    policy: RunPolicy,
    progress: Progress | None,
) -> Decision:
    assert story.accepted is not None
    try:
        plan, reason = read_plan(story.accepted.job, planner.message)
    except ValueError as error:
        failure = Failure(Kind.ERROR, "PlanUnreadable", f"{name_of(planner)} left no plan: {error}")
        return restart_or_fail(story, failure, [planner], stale, policy, progress)
    words = f"{plan.in_words()}: {reason}"
    story.event("Normal", "Planned", words, f"planned-{story.status.attempt}")
    told = PlanStatus.model_validate({**plan.as_dict(), "reason": reason})
    story.update(plan=told, attempt_start_time=None)
    story.tell("Pending", "Planned", words, created=False)
    return story.decision()  # with a plan the pod belongs to the past, and goes when this is written


def read_plan(job: GNNPipeJob, message: str) -> tuple[Plan, str]:
    """The planner's last word, if it is a plan for this job: what runs in a pod is its user's, and may say anything."""
    said = read_said(message) or {}
    numbers = said.get("plan")
    if not isinstance(numbers, dict):
        raise ValueError("its last word holds none")
    given = [numbers.get(name) for name in ("stages", "ways", "chunks")]
    stages, ways, chunks = (each if type(each) is int and each >= 1 else 0 for each in given)
    if not (stages and ways and chunks):
        raise ValueError(f"its last word says stages, ways and chunks {given}")
    limit = most_ranks(job.spec.parallelism)
    if stages * ways > limit:
        raise ValueError(f"it takes {stages * ways} ranks, but auto may take {limit} at most")
    plan = make_plan(with_numbers(job, stages, ways, chunks))
    return plan, str(said.get("reason") or "the planner gave no reason")[:MESSAGE_LIMIT]


def _watch(story: Story, gang: Sequence[ObservedPod], policy: RunPolicy) -> Decision:
    """The pod is there. Does it run?"""
    if not story.job.status.is_true("Created"):
        story.update(attempt_start_time=story.now, restart_time=None)
    if not gang[0].running:
        too_late = too_late_to_run(story, gang, policy)
        if too_late:
            return too_late
    if why_waiting(gang):
        say_why_not_running(story, gang)
    else:
        words = "a pod looks at the graph to settle what spec.parallelism leaves to auto"
        story.tell("Pending", "Planning", words, created=True)
    return story.decision()
