"""Reads a gang's pods into the one reason that a person needs: which stage, why, and whose fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from gnnpipe_api.contract import ExitCode
from gnnpipe_operator.labels import PLANNER
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.said import read_said

DISRUPTION_REASONS = frozenset(
    {
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "Preempting",
        "Shutdown",
        "Terminated",
        "NodeAffinity",
        "UnexpectedAdmissionError",
    }
)
MESSAGE_LIMIT = 500  # characters of a trainer's last words that go into status and Events


class Kind(IntEnum):
    """Which failure explains the others when several pods of a gang fail: the lowest.

    A pod that was preempted, or that found the data wrong, makes its neighbours fail of a lost connection.
    A victim, which says itself that it was well and lost another one, explains nothing: see `culprit`.
    """

    INVALID = 0  # final: trying again cannot help
    DISRUPTION = 1  # the cluster's doing: restart, not counted
    ERROR = 2  # restart, counted
    VICTIM = 3  # another pod's doing


@dataclass(frozen=True, slots=True)
class Failure:
    kind: Kind
    reason: str  # CamelCase, for conditions and Events
    message: str


def first_failure(pods: Sequence[ObservedPod]) -> Failure | None:
    """The failure that explains the gang's end best: by kind, then the earliest."""
    found = [(failure, pod) for pod in pods if (failure := read_failure(pod))]
    if not found:
        return None

    def order(item: tuple[Failure, ObservedPod]) -> tuple[int, float, int]:
        failure, pod = item
        return failure.kind, (pod.finished_at or pod.created).timestamp(), pod.stage

    return min(found, key=order)[0]


def read_failure(pod: ObservedPod) -> Failure | None:
    """Why this pod ended badly, or None while it is well."""
    who = name_of(pod)
    if pod.succeeded:
        return None
    if pod.exit_code == ExitCode.LOST_PEER:
        words = last_words(pod.message) or "lost the connection to another stage"
        return Failure(Kind.VICTIM, "LostPeer", f"{who}: {words}")
    if pod.exit_code == ExitCode.INVALID:
        return Failure(Kind.INVALID, "InvalidData", f"{who}: {all_words(pod.message) or 'exit code 2'}")
    if pod.exit_code == ExitCode.PREEMPTED:
        stopped = "was asked to stop" if pod.plans else "was asked to stop, and checkpointed"
        return Failure(Kind.DISRUPTION, "Preempted", f"{who} {stopped}")
    if pod.reason in DISRUPTION_REASONS or pod.disrupted:
        reason = pod.reason if pod.reason in DISRUPTION_REASONS else "Preempted"
        return Failure(Kind.DISRUPTION, reason, f"{who}: {last_words(pod.message) or reason}")
    if pod.deleting:
        return Failure(
            Kind.DISRUPTION, "PodDeleted", f"{who} is being deleted by somebody else or by a drained node"
        )
    if not pod.failed:
        return None
    if pod.reason == "OOMKilled":
        other = "give numbers in place of auto" if pod.plans else "use more stages"
        message = f"{who} ran out of memory; raise spec.worker.resources or {other}"
        return Failure(Kind.ERROR, "OutOfMemory", message)
    words = last_words(pod.message)
    code = f"exit code {pod.exit_code}" if pod.exit_code is not None else (pod.reason or "no exit code")
    reason = "PlanningFailed" if pod.plans else "StageFailed"
    return Failure(Kind.ERROR, reason, f"{who}: {code}" + (f": {words}" if words else ""))


def name_of(pod: ObservedPod) -> str:
    return _name(pod.stage, pod.name)


def _name(stage: int, pod: str) -> str:
    return f"{'planning' if stage == PLANNER else f'stage {stage}'} (pod {pod})"


def lost_pod(stage: int, name: str) -> Failure:
    message = f"{_name(stage, name)} is gone: deleted by somebody else or with its node"
    return Failure(Kind.DISRUPTION, "PodLost", message)


def why_waiting(pods: Sequence[ObservedPod]) -> Failure | None:
    """The first pod that cannot start, and why; kind says nothing yet, since it may still start."""
    for pod in sorted(pods, key=lambda p: p.stage):
        who = name_of(pod)
        if pod.waiting:
            detail = last_words(pod.message)
            return Failure(Kind.ERROR, pod.waiting, f"{who}: {detail or pod.waiting}")
        if pod.unschedulable and pod.phase == "Pending":
            return Failure(Kind.ERROR, "Unschedulable", f"{who}: {pod.unschedulable}")
    return None


def last_words(message: str) -> str:
    """A termination message in one line: the error of a JSON report, else the last line of a log."""
    lines = _lines(message)
    return lines[-1][:MESSAGE_LIMIT] if lines else ""


def all_words(message: str) -> str:
    """Every line: a manifest or a graph may have several mistakes, and each is told."""
    return "; ".join(_lines(message))[:MESSAGE_LIMIT]


def _lines(message: str) -> list[str]:
    text = message.strip()
    report = read_said(text) or {}
    text = str(report.get("error") or report.get("message") or text)
    return [line.strip() for line in text.splitlines() if line.strip()]
