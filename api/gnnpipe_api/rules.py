"""What one field of a manifest cannot say about another: combinations that cannot run.

Each rule names the fields it reads. A rule is skipped when one of them is already wrong by itself, so that a
person sees every mistake at once but none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.problems import Problem

Check = Callable[[GNNPipeJob], Iterable[Problem]]


@dataclass(frozen=True)
class Rule:
    """A check and the fields it reads."""

    reads: tuple[str, ...]
    check: Check


RULES: list[Rule] = []


def rule(*reads: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        RULES.append(Rule(reads, check))
        return check

    return register


def broken_rules(job: GNNPipeJob, wrong_fields: Iterable[str] = ()) -> Iterator[Problem]:
    """Every problem of a job whose fields are right by themselves, except those that read a wrong field."""
    wrong = tuple(wrong_fields)
    for each in RULES:
        if not any(_overlap(field, path) for field in each.reads for path in wrong):
            yield from each.check(job)


def _overlap(one: str, other: str) -> bool:
    return (
        one == other or one.startswith((other + ".", other + "[")) or other.startswith((one + ".", one + "["))
    )


@rule("spec.parallelism.stages", "spec.model.layers")
def every_stage_has_a_layer(job: GNNPipeJob) -> Iterator[Problem]:
    stages, layers = job.spec.parallelism.stages, job.spec.model.layers
    if stages != "auto" and stages > layers:
        yield Problem(
            "spec.parallelism.stages",
            f"{stages} stages need at least {stages} layers, but spec.model.layers is {layers}; "
            "use fewer stages or more layers.",
        )


@rule("spec.parallelism.ways", "spec.parallelism.chunks")
def ways_share_the_chunks_evenly(job: GNNPipeJob) -> Iterator[Problem]:
    ways, chunks = job.spec.parallelism.ways, job.spec.parallelism.chunks
    if ways == "auto" or chunks is None or chunks == "auto" or chunks % ways == 0:
        return
    if chunks < ways:
        sentence = f"{ways} ways need at least {ways} chunks, got {chunks}; use more chunks or fewer ways."
    else:
        nearest = chunks // ways * ways
        sentence = (
            f"{ways} ways cannot share {chunks} chunks evenly; use {nearest} or {nearest + ways} chunks."
        )
    yield Problem("spec.parallelism.chunks", sentence)
