"""Reading pods: the one reason that explains a gang's end."""

from __future__ import annotations

from typing import Any

import pytest

from gnnpipe_operator.failure import Kind, first_failure, last_words, read_failure, why_waiting


@pytest.mark.parametrize(
    ("pod", "kind", "reason", "words"),
    [
        (
            {"exit_code": 2, "message": "spec.graph.path: no such file"},
            Kind.INVALID,
            "InvalidData",
            "no such file",
        ),
        (
            {"exit_code": 2, "message": "a: wrong.\nb: wrong."},
            Kind.INVALID,
            "InvalidData",
            "a: wrong.; b: wrong.",
        ),
        ({"exit_code": 75}, Kind.DISRUPTION, "Preempted", "checkpointed"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            Kind.DISRUPTION,
            "Evicted",
            "low on",
        ),
        ({"phase": "Failed", "reason": "NodeLost"}, Kind.DISRUPTION, "NodeLost", "NodeLost"),
        ({"exit_code": 137, "disrupted": True, "reason": "Error"}, Kind.DISRUPTION, "Preempted", "stage 1"),
        (
            {"exit_code": 1, "message": "a\nb\nKeyError: x\n"},
            Kind.ERROR,
            "StageFailed",
            "exit code 1: KeyError: x",
        ),
        ({"exit_code": 137, "reason": "OOMKilled"}, Kind.ERROR, "OutOfMemory", "spec.worker.resources"),
        ({"exit_code": 1, "message": '{"error": "loss is NaN"}'}, Kind.ERROR, "StageFailed", "loss is NaN"),
        ({"phase": "Failed"}, Kind.ERROR, "StageFailed", "no exit code"),
    ],
)
def test_a_bad_end_is_read_into_kind_reason_and_words(
    make_pod: Any, pod: dict[str, Any], kind: Kind, reason: str, words: str
) -> None:
    failure = read_failure(make_pod(1, **pod))
    assert failure is not None
    assert (failure.kind, failure.reason) == (kind, reason)
    assert words in failure.message
    assert "stage 1 (pod cora-s1-a0)" in failure.message


@pytest.mark.parametrize("pod", [{}, {"phase": "Running"}, {"exit_code": 0}, {"phase": "Succeeded"}])
def test_a_pod_that_is_well_is_no_failure(make_pod: Any, pod: dict[str, Any]) -> None:
    assert read_failure(make_pod(0, **pod)) is None


def test_a_pod_that_somebody_deletes_is_a_disruption(make_pod: Any, seconds: Any) -> None:
    failure = read_failure(make_pod(0, phase="Running", deletion_deadline=seconds(30)))
    assert failure is not None
    assert (failure.kind, failure.reason) == (Kind.DISRUPTION, "PodDeleted")


def test_wrong_data_explains_the_neighbours_that_lost_their_connection(make_pod: Any, seconds: Any) -> None:
    pods = [
        make_pod(0, exit_code=1, finished_at=seconds(1)),
        make_pod(1, exit_code=2, finished_at=seconds(2)),
    ]
    failure = first_failure(pods)
    assert failure is not None
    assert failure.reason == "InvalidData"


def test_of_equal_failures_the_earliest_is_told(make_pod: Any, seconds: Any) -> None:
    pods = [
        make_pod(0, exit_code=1, finished_at=seconds(5)),
        make_pod(1, exit_code=3, finished_at=seconds(4)),
    ]
    failure = first_failure(pods)
    assert failure is not None
    assert "exit code 3" in failure.message


def test_a_pod_that_cannot_start_says_why(make_pod: Any) -> None:
    pulling = make_pod(1, waiting="ImagePullBackOff", reason="ImagePullBackOff", message="not found: gnn:1")
    waiting = why_waiting([pulling, make_pod(0)])
    assert waiting is not None
    assert (waiting.reason, "not found: gnn:1" in waiting.message) == ("ImagePullBackOff", True)


def test_an_unschedulable_pod_repeats_the_schedulers_sentence(make_pod: Any) -> None:
    waiting = why_waiting([make_pod(0, unschedulable="0/3 nodes: insufficient nvidia.com/gpu")])
    assert waiting is not None
    assert waiting.message.endswith("0/3 nodes: insufficient nvidia.com/gpu")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("", ""),
        ("[" * 4000, "[" * 500),
        ("one\n\n", "one"),
        ("{broken", "{broken"),
        ('{"message": "m"}', "m"),
        ("x" * 900, "x" * 500),
    ],
)
def test_last_words_are_one_short_line(message: str, words: str) -> None:
    assert last_words(message) == words
