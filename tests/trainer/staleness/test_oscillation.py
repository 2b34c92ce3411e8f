"""The oscillation measure tells a wave from noise and from steady descent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gnnpipe_trainer.staleness.advice import OSCILLATES_BELOW
from gnnpipe_trainer.staleness.oscillation import BUCKETS, WINDOW_EPOCHS, Sketch, Window


def window_of(gradients: np.ndarray) -> Window:
    """One rank's, [epochs, entries]."""
    window = Window()
    for gradient in gradients:
        window.add([gradient.tolist()])
    return window


def noise(scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(0).standard_normal((WINDOW_EPOCHS, BUCKETS))


@pytest.mark.parametrize("period", [8, 10, 12])
def test_a_wave_is_seen_through_noise(period: int) -> None:
    direction = np.random.default_rng(1).standard_normal(BUCKETS)
    wave = np.sin(2 * np.pi * np.arange(WINDOW_EPOCHS) / period)[:, None] * direction
    found = window_of(wave + noise(0.5)).oscillation()
    assert found is not None
    assert found < OSCILLATES_BELOW


@pytest.mark.parametrize("gradients", [noise(), noise(0.3) + 1.0], ids=["noise", "descent"])
def test_noise_and_steady_descent_do_not_swing(gradients: np.ndarray) -> None:
    found = window_of(gradients).oscillation()
    assert found is not None
    assert found > OSCILLATES_BELOW


def test_before_the_window_is_full_nothing_is_said() -> None:
    assert window_of(noise()[:-1]).oscillation() is None
    assert window_of(noise()).oscillation() is not None


def test_a_gradient_that_is_no_number_makes_no_figure() -> None:
    broken = noise()
    broken[3, 5] = np.nan
    assert window_of(broken).oscillation() is None


def test_a_window_kept_in_a_checkpoint_goes_on_as_it_was() -> None:
    gradients = noise()
    whole = window_of(gradients)
    resumed = Window()
    resumed.restore(window_of(gradients[:10]).saved())
    for gradient in gradients[10:]:
        resumed.add([gradient.tolist()])
    assert resumed.oscillation() == whole.oscillation()


def test_sketches_keep_the_angles_of_gradients() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(50, 30)), nn.Parameter(torch.zeros(7))]
    sketch = Sketch(parameters)
    gradients = [[torch.randn_like(p) for p in parameters] for _ in range(2)]
    gradients.append(
        [0.8 * a + 0.6 * b for a, b in zip(*gradients, strict=True)]
    )  # cosine 0.8 with the first
    taken = []
    for gradient in gradients:
        for parameter, part in zip(parameters, gradient, strict=True):
            parameter.grad = part
        taken.append(np.array(sketch.take()))
    cosine = taken[0] @ taken[2] / np.linalg.norm(taken[0]) / np.linalg.norm(taken[2])
    assert cosine == pytest.approx(0.8, abs=0.2)
    assert np.linalg.norm(taken[0]) ** 2 == pytest.approx(1507, rel=0.5)
