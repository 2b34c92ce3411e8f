"""Rules about `spec.worker` (all but its template) and `spec.runPolicy`."""

from __future__ import annotations

from collections.abc import Iterator

from gnnpipe_api.job import JobSpec
from gnnpipe_api.problems import Problem
from gnnpipe_api.rule import Cel, Rule, rule


@rule("spec.worker.resources", "spec.worker.gpuResource")
def gpus_follow_from_the_ways(spec: JobSpec) -> Iterator[Problem]:
    gpu = spec.worker.gpu_resource
    resources = spec.worker.resources
    for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        if gpu in amounts:
            yield Problem(
                f"spec.worker.resources.{kind}.{gpu}",
                "leave it out: each pod gets one GPU per way, so set spec.parallelism.ways.",
            )


@rule(
    "spec.runPolicy.activeDeadlineSeconds",
    "spec.runPolicy.preRunningDeadlineSeconds",
    cel=(
        Cel(
            "!has(self.runPolicy.activeDeadlineSeconds) || !has(self.runPolicy.preRunningDeadlineSeconds)"
            " || self.runPolicy.preRunningDeadlineSeconds <= self.runPolicy.activeDeadlineSeconds",
            "runPolicy.preRunningDeadlineSeconds: must not exceed runPolicy.activeDeadlineSeconds.",
        ),
    ),
)
def pods_start_within_the_deadline(spec: JobSpec) -> Iterator[Problem]:
    active = spec.run_policy.active_deadline_seconds
    pre_running = spec.run_policy.pre_running_deadline_seconds
    if active is not None and pre_running is not None and pre_running > active:
        yield Problem(
            "spec.runPolicy.preRunningDeadlineSeconds",
            f"{pre_running} can never pass, since spec.runPolicy.activeDeadlineSeconds is {active}.",
        )


@rule(
    "spec.runPolicy.scheduling.gang",
    "spec.runPolicy.scheduling.queue",
    cel=(
        Cel(
            "!has(self.runPolicy.scheduling.queue) || self.runPolicy.scheduling.gang in ['volcano', 'kueue']",
            "runPolicy.scheduling.queue: only gangs volcano and kueue have queues.",
        ),
        Cel(
            "self.runPolicy.scheduling.gang != 'kueue' || has(self.runPolicy.scheduling.queue)",
            "runPolicy.scheduling.queue: gang kueue needs the name of a queue.",
        ),
    ),
)
def a_queue_belongs_to_a_gang(spec: JobSpec) -> Iterator[Problem]:
    gang, queue = spec.run_policy.scheduling.gang, spec.run_policy.scheduling.queue
    path = "spec.runPolicy.scheduling.queue"
    if queue is not None and gang not in ("volcano", "kueue"):
        yield Problem(
            path, f"only gangs volcano and kueue have queues, but spec.runPolicy.scheduling.gang is {gang}."
        )
    if queue is None and gang == "kueue":
        yield Problem(path, "gang kueue needs the name of a LocalQueue.")


CLUSTER_RULES: tuple[Rule, ...] = (
    gpus_follow_from_the_ways,
    pods_start_within_the_deadline,
    a_queue_belongs_to_a_gang,
)
