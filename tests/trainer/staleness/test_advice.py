"""Warnings name the setting that helps, and are silent where theory sees no danger."""

from __future__ import annotations

from typing import Any

import pytest

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_trainer.staleness.advice import oscillation_advice, stability_notice


def job(training: dict[str, Any] | None = None, **history: Any) -> GNNPipeJob:
    return parse_job(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "stale"},
            "spec": {
                "graph": {"source": "synthetic"},
                "model": {"kind": "gcn", "layers": 4},
                "training": {"learningRate": 0.01, **(training or {})},
                "parallelism": {"stages": 2, "history": history},
            },
        }
    )


@pytest.mark.parametrize(
    ("history", "way_out"),
    [
        ({"mode": "previous"}, "history.mode is previous: use ema"),
        ({"mode": "frozen"}, "larger refreshEvery"),
        ({"mode": "ema"}, "history.decay from 0.9 to 0.95"),
    ],
)
def test_advice_fits_the_history_that_is_used(history: dict[str, Any], way_out: str) -> None:
    sentence = oscillation_advice(job(**history), -0.5, 0.31)
    assert way_out in sentence
    assert "spec.training.learningRate (0.01)" in sentence
    assert "31%" in sentence


def test_previous_is_told_which_learning_rate_it_bears() -> None:
    notice = stability_notice(job(mode="previous"), 0.31)
    assert notice is not None
    assert "a learning rate near 0.0008" in notice  # 0.01 / (0.31 x 38)


def test_without_momentum_previous_bears_what_exact_training_bears() -> None:
    assert stability_notice(job({"optimizer": "sgd"}, mode="previous"), 0.31) is None
    assert stability_notice(job({"optimizer": "sgd", "momentum": 0.9}, mode="previous"), 0.31) is not None


@pytest.mark.parametrize("share", [0.05, 0.3, 0.37])
def test_the_default_needs_no_notice_while_less_than_two_fifths_are_stale(share: float) -> None:
    assert stability_notice(job(), share) is None


@pytest.mark.parametrize(
    ("history", "share", "said"),
    [
        ({"mode": "frozen"}, 0.6, "here it is 60%"),
        ({"mode": "frozen"}, 0.4, None),
        ({"mode": "previous"}, 0.0, None),
        ({"mode": "ema", "decay": 0.5}, 0.3, "0.86 or more"),
    ],
)
def test_notices_follow_the_linear_model(history: dict[str, Any], share: float, said: str | None) -> None:
    notice = stability_notice(job(**history), share)
    assert notice is None if said is None else notice is not None and said in notice
