"""Dropout zeroes the asked share, keeps the mean, and is a function of the seed."""

from __future__ import annotations

import pytest
import torch

from gnnpipe_trainer.models.dropout import dropout, kept_scale

PROBABILITIES = [0.1, 0.5, 0.9]


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_the_asked_share_is_zeroed_and_the_mean_stays(probability: float) -> None:
    torch.manual_seed(0)
    dropped = dropout(torch.ones(1000, 999), probability, training=True)
    deviation = (probability * (1 - probability) / dropped.numel()) ** 0.5
    assert abs((dropped == 0).double().mean().item() - probability) < 5 * deviation
    assert abs(dropped.double().mean().item() - 1) < 5 * deviation / (1 - probability)
    assert len(set(dropped.flatten().tolist())) == 2


def test_every_place_is_as_likely_as_the_others() -> None:
    """Four places share one draw: none of them may follow another."""
    torch.manual_seed(0)
    kept = (dropout(torch.ones(200_000, 4), 0.5, training=True) > 0).double()
    assert torch.allclose(kept.mean(0), torch.tensor(0.5, dtype=torch.float64), atol=0.006)
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlation.abs().max() < 0.012


@pytest.mark.parametrize("training", [True, False])
def test_probability_zero_changes_nothing(training: bool) -> None:
    x = torch.randn(5, 3)
    assert torch.equal(dropout(x, 0.0, training), x)


def test_probability_one_leaves_nothing() -> None:
    assert torch.equal(dropout(torch.randn(5, 3), 1.0, training=True), torch.zeros(5, 3))


def test_a_probability_too_small_for_sixteen_bits_changes_nothing() -> None:
    x = torch.randn(5, 3)
    assert torch.equal(dropout(x, 1e-7, training=True), x)


def test_outside_training_nothing_changes() -> None:
    x = torch.randn(5, 3)
    assert torch.equal(dropout(x, 0.5, training=False), x)


def test_the_same_seed_gives_the_same_mask_and_another_seed_another() -> None:
    def draw(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout(torch.ones(50, 7), 0.5, training=True)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 5), (0, 5), (1, 1)], ids=str)
def test_the_gradient_is_what_the_values_were_multiplied_with(
    dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    dropped = dropout(x, 0.25, training=True)
    torch.autograd.backward(dropped.sum())
    assert dropped.dtype is dtype
    assert x.grad is not None
    assert torch.equal(x.grad, dropped.detach())


@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
def test_what_is_kept_is_scaled_as_backward_by_hand_takes_it(probability: float) -> None:
    x = torch.rand(1000) + 0.1
    dropped = dropout(x, probability, training=True)
    kept = dropped != 0
    assert torch.equal(dropped[kept], x[kept] * kept_scale(x, probability))


def test_other_devices_scale_as_torch_does() -> None:
    assert kept_scale(torch.empty(3, device="meta"), 0.3) == pytest.approx(1 / 0.7, rel=1e-15)
