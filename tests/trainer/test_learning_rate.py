"""The learning rate of an epoch follows from the manifest alone, and is the one that its docstrings promise."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from gnnpipe_api.job import LearningRateSchedule, TrainingSpec
from gnnpipe_trainer.learning_rate import learning_rate, rate_factor
from gnnpipe_trainer.optimizer import take_step

HALF_WAY_TO_FLOOR = 0.55  # of floor 0.1


@pytest.mark.parametrize(
    ("said", "epochs", "factors"),  # factors by epoch
    [
        ({}, 200, {0: 1.0, 100: 1.0, 199: 1.0}),
        ({"warmup_epochs": 3}, 12, {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 11: 1.0}),
        ({"warmup_epochs": 1}, 2, {0: 0.5, 1: 1.0}),
        ({"mode": "step", "every": 4}, 12, {0: 1.0, 3: 1.0, 4: 0.5, 7: 0.5, 8: 0.25, 11: 0.25}),
        (
            {"mode": "step", "every": 2, "factor": 0.1, "warmup_epochs": 1},
            7,
            {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.1, 4: 0.1, 5: 0.1**2, 6: 0.1**2},
        ),
        ({"mode": "step", "every": 50}, 12, {11: 1.0}),
        ({"mode": "cosine"}, 4, {0: 1.0, 1: (2 + math.sqrt(2)) / 4, 2: 0.5, 3: (2 - math.sqrt(2)) / 4}),
        ({"mode": "cosine", "floor": 0.1}, 20, {0: 1.0, 10: HALF_WAY_TO_FLOOR}),
        (
            {"mode": "cosine", "floor": 0.1, "warmup_epochs": 4},
            14,
            {0: 0.2, 3: 0.8, 4: 1.0, 9: HALF_WAY_TO_FLOOR},
        ),
        ({"mode": "cosine", "warmup_epochs": 11}, 12, {0: 1 / 12, 10: 11 / 12, 11: 1.0}),
        ({"mode": "cosine"}, 1, {0: 1.0}),
        ({"mode": "cosine"}, 100, {99: math.sin(math.pi / 200) ** 2}),  # 0.00025, as the manifest's page says
    ],
    ids=str,
)
def test_the_factor_at_the_borders(said: dict[str, Any], epochs: int, factors: dict[int, float]) -> None:
    schedule = LearningRateSchedule(**said)
    assert {e: rate_factor(schedule, epochs, e) for e in factors} == pytest.approx(factors, rel=1e-12)


@pytest.mark.parametrize("epochs", [1, 7, 200])
def test_without_a_warm_up_torchs_own_schedulers_give_the_same(epochs: int) -> None:
    made: list[tuple[dict[str, Any], Any]] = [
        ({"mode": "cosine", "floor": 0.2}, lambda sgd: CosineAnnealingLR(sgd, epochs, eta_min=0.2 * 0.03)),
        ({"mode": "step", "every": 30, "factor": 0.3}, lambda sgd: StepLR(sgd, 30, 0.3)),
    ]
    for said, scheduler_of in made:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.03)
        scheduler = scheduler_of(optimizer)
        training = TrainingSpec(
            epochs=epochs, learning_rate=0.03, learning_rate_schedule=LearningRateSchedule(**said)
        )
        for epoch in range(epochs):
            assert learning_rate(training, epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
            optimizer.step()
            scheduler.step()


@st.composite
def schedules(draw: st.DrawFn) -> tuple[LearningRateSchedule, int]:
    """And the epochs of the job. Steps are kept from making a rate that no float can hold."""
    epochs = draw(st.integers(1, 400))
    mode = draw(st.sampled_from(["constant", "cosine", "step"]))
    warmup = draw(st.integers(0, epochs - 1))
    said: dict[str, Any] = {"mode": mode, "warmup_epochs": warmup}
    if mode == "cosine":
        said["floor"] = draw(st.floats(0, 1, exclude_max=True))
    if mode == "step":
        said |= {"every": draw(st.integers(2, 500)), "factor": draw(st.floats(0.05, 0.999))}
    return LearningRateSchedule(**said), epochs


@given(schedules())
def test_the_rate_rises_while_it_warms_up_and_never_again(case: tuple[LearningRateSchedule, int]) -> None:
    schedule, epochs = case
    warmup = schedule.warmup_epochs
    factors = [rate_factor(schedule, epochs, epoch) for epoch in range(epochs)]
    assert all(0 < factor <= 1 for factor in factors)
    assert all(a < b for a, b in pairwise(factors[: warmup + 1]))
    assert factors[warmup] == 1.0
    assert all(a >= b for a, b in pairwise(factors[warmup:]))
    if schedule.mode == "constant":
        assert set(factors[warmup:]) == {1.0}
    if schedule.mode == "step":
        assert len(set(factors[warmup:])) == (epochs - warmup - 1) // schedule.every + 1


@given(schedules().filter(lambda case: case[0].mode == "cosine"))
def test_a_cosine_ends_at_its_floor_and_its_last_epoch_still_learns(
    case: tuple[LearningRateSchedule, int],
) -> None:
    schedule, epochs = case
    last = rate_factor(schedule, epochs, epochs - 1)
    assert rate_factor(schedule, epochs, epochs) == pytest.approx(schedule.floor, abs=1e-12)
    assert last > 0
    assert last >= schedule.floor
    falling = epochs - schedule.warmup_epochs
    assert last - schedule.floor <= (1 - schedule.floor) * (math.pi / 2 / falling) ** 2 + 1e-12


def test_a_step_takes_the_rate_in_all_groups_and_clears_the_gradients() -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [weight]} for weight in weights], lr=9.0)
    for weight in weights:
        weight.grad = torch.ones(2)
    take_step(optimizer, 0.25)
    for weight in weights:
        assert weight.tolist() == [0.75, 0.75]
        assert weight.grad is None
