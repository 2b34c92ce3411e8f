"""Which spec is in force when a person edits a job under way.

A running gang holds its manifest, so only spec.runPolicy can change under it. While the job is suspended
everything may change that the checkpoint can live with. What may not take effect now waits in the spec and is
refused with a sentence; it never half-applies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnpipe_api.contract import GROUP, KIND, VERSION
from gnnpipe_api.job import GNNPipeJob, JobSpec
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan, with_numbers
from gnnpipe_api.problems import InvalidJob
from gnnpipe_operator.actions import Accepted
from gnnpipe_operator.observed import ObservedJob

FOR_LIFE = ("graph", "model")  # a checkpoint fits one model on one graph
ALWAYS_EDITABLE = ("runPolicy",)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """`accepted` is None where there is no valid spec at all; `refused` says why, or what was not taken."""

    accepted: Accepted | None
    refused: str = ""


def accept(job: ObservedJob, stopped: bool) -> Acceptance:
    """`stopped`: no pod of the job holds a manifest, as before the first pods and while suspended."""
    before = job.status.accepted_spec
    try:
        wanted = parse_job(manifest_of(job, job.spec))
    except InvalidJob as invalid:
        problems = "; ".join(str(problem) for problem in invalid.problems)
        kept = _accepted(job, before) if before is not None else None
        return Acceptance(kept, problems)
    if before is None:
        return Acceptance(planned(job, job.spec, wanted))
    changed = sorted(_changed(job, before, wanted.spec))
    held = [part for part in changed if (part in FOR_LIFE if stopped else part not in ALWAYS_EDITABLE)]
    if not held:
        return Acceptance(planned(job, job.spec, wanted))
    spec = {k: v for k, v in job.spec.items() if k not in held} | {k: before[k] for k in held if k in before}
    return Acceptance(_accepted(job, spec), _refusal(held, wanted.spec.run_policy.suspend))


def _changed(job: ObservedJob, before: Mapping[str, Any], wanted: JobSpec) -> set[str]:
    """Parts of the spec that differ in meaning. A default that a newer schema fills in is no difference."""
    try:
        old = parse_job(manifest_of(job, before)).spec
    except InvalidJob:  # accepted by an operator with other rules: only what was written can be compared
        return {part for part in {**before, **job.spec} if before.get(part) != job.spec.get(part)}
    fields = JobSpec.model_fields.items()
    return {field.alias or name for name, field in fields if getattr(old, name) != getattr(wanted, name)}


def _accepted(job: ObservedJob, spec: Mapping[str, Any]) -> Accepted | None:
    try:
        parsed = parse_job(manifest_of(job, spec))
    except InvalidJob:
        # Parts of two valid specs need not fit each other (fewer layers waiting, more stages taken).
        before = job.status.accepted_spec
        return _accepted(job, before) if before is not None and spec != before else None
    return planned(job, spec, parsed)


def planned(job: ObservedJob, spec: Mapping[str, Any], parsed: GNNPipeJob) -> Accepted:
    """With the numbers that hold: the manifest's, or those that a planner once found for this spec.parallelism.

    They stay through restarts, suspensions and all other edits, whatever a planner would say today.
    """
    plan = job.status.plan
    if not parsed.spec.parallelism.has_auto:
        return Accepted(dict(spec), parsed, make_plan(parsed))
    if plan is None or "parallelism" in _changed(job, job.status.accepted_spec or {}, parsed.spec):
        return Accepted(dict(spec), parsed, None)
    try:
        settled = with_numbers(parsed, plan.stages, plan.ways, plan.chunks)
    except ValueError:  # somebody wrote into the status
        return Accepted(dict(spec), parsed, None)
    return Accepted(dict(spec), settled, make_plan(settled), plan.reason)


def _refusal(held: list[str], suspending: bool) -> str:
    """Empty where the person has done already what the sentence would ask for: the edit waits for the pods to go."""
    for_life = [f"spec.{part}" for part in held if part in FOR_LIFE]
    while_running = [f"spec.{part}" for part in held if part not in FOR_LIFE]
    sentences = []
    if for_life:
        sentences.append(
            f"{' and '.join(for_life)} cannot change in a job's life, since its checkpoint would not fit; "
            "make a new job, or set it back"
        )
    if while_running and not suspending:
        sentences.append(
            f"{' and '.join(while_running)} cannot change while the job runs; "
            "set spec.runPolicy.suspend to true first, or set it back"
        )
    return "; ".join(sentences)


def manifest_of(job: ObservedJob, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace},
        "spec": dict(spec),
    }


def resolved_manifest(accepted: Accepted) -> dict[str, Any]:
    """The manifest that the pods get: no "auto" is left in how the job is cut, so that all ranks cut alike.

    Defaults are left out: an image that is older than this operator would refuse fields that it does not know.
    """
    manifest, plan = accepted.job.manifest(defaults=False), accepted.plan
    assert plan is not None, "stages have pods only when there is a plan"
    cut = {"stages": plan.stages, "ways": plan.ways, "chunks": plan.chunks}
    manifest["spec"]["parallelism"] = manifest["spec"].get("parallelism", {}) | cut
    return manifest
