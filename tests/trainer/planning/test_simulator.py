"""The simulator plays the trainer's own schedules, so what it says follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnpipe_trainer.pipeline.schedule import LEAD, Work, ideal_bubble
from gnnpipe_trainer.planning.simulate import Cores, Epoch, simulate

Costs = dict[Work, list[float]]
SHAPES = [(1, 1), (2, 8), (4, 4), (4, 16), (5, 3)]


def costs_of(slots: int, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> Costs:
    """Of a stage whose slots are all alike; both gradients in one go take as long as one after the other."""
    both = inputs + weights
    return {work: [cost] * slots for work, cost in zip(Work, (forward, inputs, weights, both), strict=True)}


def equal(
    stages: int,
    slots: int,
    transfer: float = 0.0,
    split: bool = True,
    cores: int | None = None,
    work: float = 1.0,
    ways: int = 1,
) -> Epoch:
    costs = costs_of(slots, work, work, work)
    messages = [[transfer] * slots for _ in range(stages - 1)]
    return simulate([costs] * stages, messages, split_backward=split, cores=Cores(cores), ways=ways)


@pytest.mark.parametrize(("stages", "slots"), SHAPES)
def test_without_split_backward_the_bubble_is_the_textbooks(stages: int, slots: int) -> None:
    assert equal(stages, slots, split=False).bubble == pytest.approx(ideal_bubble(stages, slots))


@given(
    costs=st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=1, max_size=5),
    slots=st.integers(1, 7),
    transfer=st.floats(0, 5),
    cores=st.one_of(st.none(), st.integers(1, 4)),
)
def test_an_epoch_is_never_shorter_than_its_busiest_stage_nor_longer_than_everything_in_a_row(
    costs: list[list[float]], slots: int, transfer: float, cores: int | None
) -> None:
    stages = [costs_of(slots, *cost) for cost in costs]
    epoch = simulate(stages, [[transfer] * slots for _ in stages[1:]], cores=Cores(cores))
    busy = [sum(cost) * slots for cost in costs]
    least = max(max(busy), sum(busy) / (cores or len(costs)))
    assert epoch.seconds >= least - 1e-6
    assert epoch.seconds <= sum(busy) + 2 * slots * transfer * (len(costs) - 1) + 1e-6
    put_off = [min(slots, LEAD * stage) for stage in range(len(stages))]
    assert [len(row) for row in epoch.rows] == [2 * slots + late for late in put_off]


def test_transfers_hide_behind_compute_until_the_link_is_slower_than_a_slot() -> None:
    without, hidden, slow = equal(2, 32), equal(2, 32, transfer=0.5), equal(2, 32, transfer=4.0)
    assert hidden.seconds == pytest.approx(without.seconds, rel=0.05)
    assert slow.seconds == pytest.approx(2 * 32 * 4.0, rel=0.05)  # the link is all that counts


def test_ranks_that_share_cores_take_turns() -> None:
    assert equal(4, 16, cores=2).seconds == pytest.approx(4 * 16 * 3 / 2, rel=0.06)
    assert equal(4, 16, cores=4).seconds == equal(4, 16).seconds
    assert equal(1, 1, ways=4, cores=2).seconds == pytest.approx(6.0)


def test_the_slowest_stage_sets_the_pace() -> None:
    quick, slow = (costs_of(16, cost, cost, cost) for cost in (1.0, 3.0))
    epoch = simulate([quick, slow, quick], [[0.0] * 16] * 2)
    assert epoch.seconds == pytest.approx(3 * 16 * 3, rel=0.06)


def test_busy_cores_slow_each_other_down_as_far_as_they_share_caches_and_memory() -> None:
    crowded = Cores(2, crowding=1.5)
    assert [crowded.rate(busy) for busy in (1, 2)] == [1.0, pytest.approx(1 / 1.5)]
    assert crowded.rate(4) == pytest.approx(crowded.rate(2) / 2)


def test_the_whole_graph_as_one_slot_is_held_up_otherwise_than_chunks_that_caches_hold() -> None:
    cores = Cores(2, crowding=1.1, whole=1.5)
    assert cores.for_slots(8) == cores
    assert cores.for_slots(1).rate(2) == pytest.approx(1 / 1.5)


def test_ranks_that_take_turns_on_a_core_lose_more_than_the_others_share() -> None:
    cores = Cores(2, crowding=1.5, turns=1.2)
    assert cores.rate(2) == Cores(2, crowding=1.5).rate(2)
    assert cores.rate(4) == pytest.approx(cores.rate(2) / 2 / 1.2)
    assert cores.rate(3) == pytest.approx(cores.rate(2) * 2 / 3 / 1.2)  # a third finds no core free, too
    assert cores.rate(8) == pytest.approx(cores.rate(4) / 2)


def test_a_device_for_every_rank_is_never_crowded() -> None:
    assert [Cores().rate(busy) for busy in (1, 100)] == [1.0, 1.0]


def test_the_next_epoch_begins_while_later_stages_still_end_this_one() -> None:
    even = costs_of(4)
    late = costs_of(4, weights=3.0)  # which the last stage puts off to the end, but for one slot
    once, often = (simulate([even, late], [[0.0] * 4], epochs=epochs) for epochs in (1, 3))
    assert once.seconds == 1 + 4 * 5
    assert often.seconds == 4 * 5


def test_what_is_done_before_the_first_wait_is_hidden_behind_it_and_what_comes_last_is_not() -> None:
    costs = costs_of(8)
    plain = simulate([costs] * 2, [[0.0] * 8])
    assert simulate([costs] * 2, [[0.0] * 8], prepare=[0.0, 0.9]).seconds == plain.seconds
    assert simulate([costs] * 2, [[0.0] * 8], end=[0.5, 0.5]).seconds == plain.seconds + 0.5
