"""weights.py: what is averaged is what it says, and training does not notice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnpipe_trainer.weights import Average, ema, tail

DECAY = 0.5


def drawn(module: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_the_average_is_the_mean_of_the_first_epochs_and_then_forgets() -> None:
    model = nn.Linear(3, 2)
    average = Average("ema", model.state_dict(), ema(DECAY))
    seen = []
    for epoch in range(4):
        seen.append(drawn(model)["weight"])
        average.follow(epoch)
    first, second, third, fourth = seen
    wanted = (((first + second) / 2 + third) / 2 + fourth) / 2  # t / (t + 1) is above the decay from t = 1 on
    torch.testing.assert_close(average.weights["weight"], wanted)


def test_a_tail_grows_with_training_and_is_as_old_on_average_as_its_part_of_it() -> None:
    model, parts, epochs = nn.Linear(1, 1), 4, 400
    average = Average("long", model.state_dict(), tail(parts))
    for epoch in range(epochs):
        model.weight.data.fill_(epoch)
        average.follow(epoch)
        if epoch == 0:
            assert float(average.weights["weight"]) == 0.0  # the first weights count whole
    age = epochs - 1 - float(average.weights["weight"])
    assert age == pytest.approx((epochs - 1) / (parts + 1), abs=1e-2)


def test_whole_numbers_are_kept_as_they_are_last() -> None:
    model = nn.BatchNorm1d(2)
    average = Average("ema", model.state_dict(), ema(DECAY))
    for epoch in range(3):
        model(torch.randn(5, 2))
        average.follow(epoch)
    assert int(average.weights["num_batches_tracked"]) == 3
    assert not torch.equal(average.weights["running_mean"], model.state_dict()["running_mean"])


def test_a_forgotten_average_begins_anew_also_where_it_was_no_number() -> None:
    model = nn.Linear(3, 2)
    average = Average("ema", model.state_dict(), ema(DECAY))
    drawn(model)
    average.follow(0)
    average.weights["weight"].fill_(torch.nan)
    average.forget()
    own = drawn(model)
    average.follow(0)
    assert torch.equal(average.weights["weight"], own["weight"])


def test_the_model_has_its_own_weights_again_afterwards_bit_for_bit() -> None:
    model = nn.Linear(3, 2)
    average = Average("ema", model.state_dict(), ema(DECAY))
    for epoch in range(3):
        own = drawn(model)
        average.follow(epoch)
    averaged = average.weights["weight"].clone()
    with average.in_place():
        assert torch.equal(model.weight, averaged)
    assert torch.equal(model.weight, own["weight"])
    assert not torch.equal(averaged, own["weight"])
    assert torch.equal(average.weights["weight"], averaged)
