"""Schedules played through and drawn: the pictures show the lists that the engine runs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from gnnpipe_trainer.draw import draw_run, draw_schedule
from gnnpipe_trainer.pipeline.schedule import Work, epoch_schedule
from gnnpipe_trainer.planning.simulate import play
from gnnpipe_trainer.timeline import Span, idle_share, makespan


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(("stages", "slots"), [(1, 1), (2, 1), (2, 4), (3, 5), (4, 16)])
def test_every_stage_does_its_schedule_in_order_and_one_thing_at_a_time(
    stages: int, slots: int, split: bool
) -> None:
    for stage, row in enumerate(play(stages, slots, split)):
        listed = [str(a) for a in epoch_schedule(stages, stage, slots, split) if a.move is None]
        assert [span.name for span in row] == listed
        assert all(before.end <= after.start for before, after in pairwise(row))


@pytest.mark.parametrize("split", [True, False])
def test_no_stage_works_on_what_has_not_come_yet(split: bool) -> None:
    rows = play(3, 5, split)
    ends = [{_gives(span): span.end for span in row} for row in rows]
    for stage, row in enumerate(rows):
        for span in row:
            if span.name[0] == "F" and stage > 0:
                assert span.start >= ends[stage - 1][_gives(span)]
            if span.name[0] in "IB" and stage < 2:
                assert span.start >= ends[stage + 1][_gives(span)]


def _gives(span: Span) -> str:
    """What a neighbour waits for: of I and of B the input gradient."""
    return span.name.replace("B", "I")


def test_one_stage_is_never_idle() -> None:
    assert idle_share(play(1, 1)) == 0


def test_without_split_backward_the_bubble_is_the_textbook_one() -> None:
    costs = {Work.FORWARD: 1.0, Work.BACKWARD: 1.0}
    rows = play(4, 16, split_backward=False, costs=costs)
    assert idle_share(rows) == pytest.approx(3 / (16 + 3))
    assert makespan(rows) == pytest.approx(2 * (16 + 3))


def test_split_backward_shrinks_the_bubble() -> None:
    assert idle_share(play(4, 16)) < idle_share(play(4, 16, split_backward=False))


def test_waiting_inside_of_work_is_idleness() -> None:
    row = [Span("wait graph", 1.0, 2.0), Span("F0", 0.0, 4.0), Span("wait gradient", 4.0, 5.0)]
    assert idle_share([row]) == pytest.approx(2 / 5)


def test_drawing_the_same_schedule_twice_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_schedule(tmp_path / name, stages=3, slots=4)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_picture_of_the_docs_is_drawn_from_the_schedule_of_today(tmp_path: Path) -> None:
    draw_schedule(tmp_path / "pipeline.svg", stages=4, slots=8)
    kept = Path(__file__).parents[3] / "docs" / "images" / "pipeline.svg"
    assert kept.read_text() == (tmp_path / "pipeline.svg").read_text(), (
        "draw it anew: python -m gnnpipe_trainer.draw docs/images/pipeline.svg"
    )


def test_every_bar_of_an_svg_carries_its_slot(tmp_path: Path) -> None:
    draw_schedule(tmp_path / "pipeline.svg", stages=2, slots=3)
    text = (tmp_path / "pipeline.svg").read_text()
    for slot in range(3):
        assert text.count(f">{slot}</text>") == 2 + 3  # F and B on the first stage, F, I and W on the second


def test_a_recorded_run_is_drawn_beside_the_ideal_one(tmp_path: Path) -> None:
    real = [[Span("F0", 5.0, 5.1), Span("SEND(F0)", 5.1, 5.11), Span("step", 5.3, 5.4)]]
    draw_run(tmp_path / "schedule.png", real, play(1, 1), "epoch 3")
    assert (tmp_path / "schedule.png").read_bytes().startswith(b"\x89PNG")
