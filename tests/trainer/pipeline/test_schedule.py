"""Schedules are data: every property NCCL and the algorithm ask for is checked without a process."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnpipe_trainer.pipeline import schedule
from gnnpipe_trainer.pipeline.schedule import (
    LEAD,
    Action,
    Move,
    Work,
    epoch_schedule,
    exact_schedule,
    ideal_bubble,
    slot_count,
    slot_order,
)

pipelines = st.tuples(st.integers(1, 9), st.integers(1, 40), st.booleans())


def all_stages(stages: int, slots: int, split: bool) -> list[list[Action]]:
    return [epoch_schedule(stages, stage, slots, split) for stage in range(stages)]


@given(pipelines)
def test_each_pair_sends_and_receives_in_the_same_order(shape: tuple[int, int, bool]) -> None:
    """NCCL knows no tags: on each communicator (one per direction) the two ends must agree on the order."""
    lists = all_stages(*shape)
    for work in (Work.FORWARD, Work.INPUT_GRADIENT):
        for sender, actions in enumerate(lists):
            for receiver in range(len(lists)):
                sent = moves(actions, work, Move.SEND, receiver)
                received = moves(lists[receiver], work, Move.RECV, sender)
                assert sent == received


@given(pipelines)
def test_it_ends_even_if_every_send_waits_for_its_receive(shape: tuple[int, int, bool]) -> None:
    """No buffering at all, no early receive: the harshest network there is. If that ends, any other does."""
    lists = all_stages(*shape)
    at = [0] * len(lists)

    def current(stage: int) -> Action | None:
        return lists[stage][at[stage]] if at[stage] < len(lists[stage]) else None

    while any(current(stage) for stage in range(len(lists))):
        moved = False
        for stage in range(len(lists)):
            action = current(stage)
            if action is None:
                continue
            if action.move is None:
                at[stage] += 1
                moved = True
            elif action.move is Move.SEND:
                assert action.peer_stage is not None
                other = current(action.peer_stage)
                wanted = Action(action.work, action.position, Move.RECV, stage)
                if other == wanted:
                    at[stage] += 1
                    at[action.peer_stage] += 1
                    moved = True
        assert moved, f"deadlock at {[str(current(s)) for s in range(len(lists))]}"


@given(pipelines)
def test_every_slot_is_worked_once_and_backward_mirrors_forward(shape: tuple[int, int, bool]) -> None:
    _, slots, split = shape
    for actions in all_stages(*shape):
        work = {kind: [a.position for a in actions if a.work is kind and a.move is None] for kind in Work}
        assert work[Work.FORWARD] == list(range(slots))
        assert work[Work.INPUT_GRADIENT] + work[Work.BACKWARD] == list(reversed(range(slots)))
        assert Counter(work[Work.WEIGHT_GRADIENT]) == Counter(work[Work.INPUT_GRADIENT])
        assert split or not work[Work.WEIGHT_GRADIENT]


def test_later_stages_put_off_more_weight_gradients_and_the_first_none() -> None:
    for stage, actions in enumerate(all_stages(4, 16, True)):
        put_off = [a for a in actions if a.work is Work.WEIGHT_GRADIENT]
        assert len(put_off) == min(16, LEAD * stage)


@given(pipelines)
def test_weight_gradients_come_after_their_input_gradients(shape: tuple[int, int, bool]) -> None:
    for actions in all_stages(*shape):
        done: set[int] = set()
        for action in actions:
            if action.work is Work.INPUT_GRADIENT and action.move is None:
                done.add(action.position)
            if action.work is Work.WEIGHT_GRADIENT:
                assert action.position in done


@given(pipelines)
def test_gradients_leave_before_weight_work_of_the_same_slot(shape: tuple[int, int, bool]) -> None:
    for actions in all_stages(*shape):
        sent: set[int] = set()
        has_previous = any(a.move is Move.SEND and a.work is Work.INPUT_GRADIENT for a in actions)
        for action in actions:
            if action.work is Work.INPUT_GRADIENT and action.move is Move.SEND:
                sent.add(action.position)
            if action.work is Work.WEIGHT_GRADIENT and has_previous:
                assert action.position in sent


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 50))
def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch_only(
    slots: int, seed: int, epoch: int
) -> None:
    order = slot_order(slots, seed, epoch, shuffle=True)
    assert sorted(order) == list(range(slots))
    assert order == slot_order(slots, seed, epoch, shuffle=True)
    assert slot_order(slots, seed, epoch, shuffle=False) == list(range(slots))


def test_the_order_changes_from_epoch_to_epoch() -> None:
    assert len({tuple(slot_order(16, 0, epoch, shuffle=True)) for epoch in range(20)}) == 20


@pytest.mark.parametrize(
    ("stages", "ways", "chunks", "slots"), [(1, 1, 16, 1), (1, 4, 4, 1), (2, 1, 16, 16), (2, 2, 16, 8)]
)
def test_one_stage_takes_the_graph_as_one_slot(stages: int, ways: int, chunks: int, slots: int) -> None:
    assert slot_count(stages, ways, chunks) == slots


def test_exact_passes_only_go_forward() -> None:
    assert [str(a) for a in exact_schedule(3, 1)] == ["RECV(F0)", "F0", "SEND(F0)"]


def test_the_textbook_bubble() -> None:
    assert ideal_bubble(8, 32) == pytest.approx(7 / 39)
    assert ideal_bubble(1, 1) == 0


def test_the_docstring_shows_a_real_schedule() -> None:
    assert doctest.testmod(schedule).failed == 0


def moves(actions: list[Action], work: Work, move: Move, peer: int) -> list[int]:
    return [a.position for a in actions if a.work is work and a.move is move and a.peer_stage == peer]
