"""The guard speaks up when what was learned is lost again, and only then."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import pytest

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.staleness.guard import DivergenceWatch, Guard, Verdict


def first_verdict(losses: Iterable[float], guard: Guard | None = None) -> Verdict | None:
    guard = guard or Guard(tolerance=0.5)
    for epoch, loss in enumerate(losses):
        if verdict := guard.look(epoch, loss):
            return verdict
    return None


def falling(epochs: int, lowest: float = 0.0) -> list[float]:
    return [lowest + 2.7 * math.exp(-epoch / 20) for epoch in range(epochs)]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_noticed_at_once(loss: float) -> None:
    verdict = first_verdict([*falling(5), loss])
    assert verdict is not None
    assert (verdict.epoch, verdict.finite) == (5, False)


def test_a_loss_that_falls_with_jumps_is_fine() -> None:
    dice = np.random.default_rng(0)
    assert first_verdict(loss * dice.uniform(0.3, 3) for loss in falling(300)) is None


def test_a_loss_that_stays_where_it_began_is_no_divergence() -> None:
    dice = np.random.default_rng(0)
    assert first_verdict(2.7 + dice.normal(0, 0.02) for _ in range(300)) is None


def test_a_collapse_is_noticed_within_a_few_epochs() -> None:
    verdict = first_verdict([*falling(60), *[2.7] * 40])
    assert verdict is not None
    assert 60 < verdict.epoch <= 70
    assert "2.7" in verdict.reason


def test_an_explosion_before_anything_was_learned_is_noticed() -> None:
    assert first_verdict([2.7 * 1.2**epoch for epoch in range(30)]) is not None


def test_a_higher_tolerance_bears_more() -> None:
    losses = [*falling(60), *[1.6] * 40]
    assert first_verdict(losses, Guard(0.5)) is not None
    assert first_verdict(losses, Guard(0.9)) is None


def test_while_the_loss_rises_nothing_is_worth_keeping() -> None:
    guard = Guard(0.5)
    first_verdict(falling(60), guard)
    assert guard.at_ease
    first_verdict([1.2] * 9, guard)
    assert not guard.at_ease


@pytest.mark.parametrize(("taken_up_with", "spoilt"), [(2.5, True), (math.nan, True), (0.3, False)])
def test_weights_that_had_diverged_before_training_was_taken_up_are_told_from_good_ones(
    taken_up_with: float, spoilt: bool
) -> None:
    guard = Guard(0.5)
    first_verdict(falling(60), guard)
    assert not guard.began_spoilt
    again = Guard(0.5)
    again.restore(guard.saved())
    again.look(60, taken_up_with)
    again.look(61, 0.2)  # only the first loss is that of what was taken up
    assert again.began_spoilt is spoilt


def test_a_guard_kept_in_a_checkpoint_judges_as_if_nothing_had_been() -> None:
    losses = [*falling(60), *[2.7] * 40]
    guard = Guard(0.5)
    first_verdict(losses[:55], guard)
    resumed = Guard(0.5)
    resumed.restore(guard.saved())
    whole = first_verdict(losses)
    verdicts = (resumed.look(epoch, loss) for epoch, loss in enumerate(losses[55:], 55))
    assert next(filter(None, verdicts)) == whole


@pytest.mark.parametrize(
    ("schedule", "epoch", "rate", "said"),
    [
        ({}, 5, 0.02, "learning rate 0.02"),
        (
            {"warmupEpochs": 3},
            0,
            0.005,
            "learning rate 0.005 (0.02 at the top of its learning-rate schedule)",
        ),
        ({"warmupEpochs": 3}, 3, 0.02, "learning rate 0.02"),
        (
            {"mode": "step", "every": 4},
            8,
            0.005,
            "learning rate 0.005 (0.02 at the top of its learning-rate schedule)",
        ),
    ],
)
def test_rollbacks_halve_what_the_learning_rate_schedule_gives(
    schedule: dict[str, Any], epoch: int, rate: float, said: str
) -> None:
    job = parse_job(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "halved"},
            "spec": {
                "graph": {"source": "synthetic"},
                "model": {"kind": "gcn", "layers": 2},
                "training": {"learningRate": 0.08, "learningRateSchedule": schedule},
            },
        }
    )
    watch = DivergenceWatch(job, control=cast(Any, None), exact=True)
    watch.rollbacks = 2
    assert watch.learning_rate(epoch) == pytest.approx(rate, rel=1e-12)
    assert watch.settings(epoch) == said
