"""`gnnpipe run --profile`: a trace that says what every rank really did."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gnnpipe_api.plan import Plan
from gnnpipe_trainer.pipeline.schedule import Work, epoch_schedule
from gnnpipe_trainer.timeline import Span
from gnnpipe_trainer.trace import (
    ENV_PROFILE,
    KEPT_EPOCHS,
    SpanRecorder,
    draw_typical_epoch,
    mean_costs,
    read_recorded,
    recorder_here,
)

Slices = dict[int, dict[int, list[dict[str, Any]]]]  # rank -> epoch -> slices by start


@pytest.fixture(scope="module")
def slices(finished_run: Any) -> Slices:
    events = json.loads((finished_run.out / "trace.json").read_text())["traceEvents"]
    found: Slices = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event["ph"] == "X":
            found[event["pid"]][event["args"]["epoch"]].append(event)
    return found


def test_every_rank_is_a_process_with_a_name(finished_run: Any) -> None:
    events = json.loads((finished_run.out / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0: stage 0", 1: "rank 1: stage 1"}


def test_every_epoch_shows_the_schedule_in_order(slices: Slices, finished_run: Any) -> None:
    assert slices.keys() == {0, 1}
    for rank, epochs in slices.items():
        listed = [str(action) for action in epoch_schedule(stages=2, stage=rank, slots=4)]
        assert list(epochs) == list(range(finished_run.result["epochs"]))
        for events in epochs.values():
            assert [e["name"] for e in events if e["name"] in listed] == listed


def test_slices_lie_side_by_side_or_inside_each_other(slices: Slices) -> None:
    for epochs in slices.values():
        for events in epochs.values():
            ordered = sorted(events, key=lambda e: (e["ts"], -e["dur"]))
            for one, other in pairwise(ordered):
                rounding = 0.002  # microseconds
                after = other["ts"] >= one["ts"] + one["dur"] - rounding
                inside = other["ts"] + other["dur"] <= one["ts"] + one["dur"] + rounding
                assert after or inside, (one, other)


def test_nothing_arrives_before_it_was_made(slices: Slices) -> None:
    for epoch, first in slices[0].items():
        made = {e["name"]: e["ts"] + e["dur"] for e in first}
        for event in slices[1][epoch]:
            if event["name"].startswith("RECV(F"):
                assert event["ts"] + event["dur"] >= made[event["name"][5:-1]]


def test_the_run_is_drawn_beside_the_ideal(finished_run: Any) -> None:
    assert (finished_run.out / "schedule.png").read_bytes().startswith(b"\x89PNG")


def test_only_the_last_epochs_are_kept_and_read_back(tmp_path: Path) -> None:
    recorder = SpanRecorder()
    recorder.span("too early", 0.0, 1.0)
    for epoch in range(KEPT_EPOCHS + 5):
        recorder.begin(epoch)
        recorder.span("F0", epoch, epoch + 1)
        recorder.span("wait graph", epoch, epoch)  # for nobody
    recorder.write(tmp_path / "spans3.json")
    assert read_recorded(tmp_path) == {
        3: {epoch: [Span("F0", epoch, epoch + 1)] for epoch in range(5, KEPT_EPOCHS + 5)}
    }


def test_a_run_that_is_not_profiled_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_PROFILE, raising=False)
    assert recorder_here(0) is None


def test_costs_are_means_over_all_ranks() -> None:
    rows = [
        [Span("F0", 0, 1), Span("I0", 1, 5), Span("RECV(F0)", 5, 9)],
        [Span("F0", 1, 4), Span("B0", 4, 9)],
    ]
    assert mean_costs(rows) == {
        Work.FORWARD: 2,
        Work.INPUT_GRADIENT: 4,
        Work.WEIGHT_GRADIENT: 0,
        Work.BACKWARD: 5,
    }


def test_ranks_that_recorded_different_epochs_are_drawn_where_they_meet(tmp_path: Path) -> None:
    row = [Span("F0", 0.0, 1.0), Span("I0", 1.0, 2.0), Span("W0", 2.0, 3.0)]
    recorded = {0: {4: row, 5: row}, 1: {5: row, 6: row}}
    draw_typical_epoch(tmp_path / "schedule.png", recorded, Plan(1, 2, 2, (4,)), split_backward=True)
    assert (tmp_path / "schedule.png").exists()
