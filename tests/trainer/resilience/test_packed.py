"""Copies for a checkpoint are what was there, whether tensors lie side by side in memory or apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gnnpipe_api.job import HistorySpec
from gnnpipe_trainer.checkpoint.packed import Packed, _runs
from gnnpipe_trainer.pipeline.history import side_by_side


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As ranks have it where each has a core; whoever comes after in this process has what was before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def blocks_of_a_stage(mode: str = "ema") -> list[Tensor]:
    spec = HistorySpec.model_validate({"mode": mode})
    made = side_by_side(5, [3, 4, 2], spec, torch.float32, torch.device("cpu"))
    return [history.live.normal_() for history in made]


def test_copies_stay_when_what_they_were_made_from_goes_on() -> None:
    tensors = {f"history.{i}": live for i, live in enumerate(blocks_of_a_stage())}
    tensors |= {
        "model.weight": torch.randn(2, 2),
        "model.step": torch.ones(()),
        "best.t": torch.randn(3, 2).t(),
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    packed = Packed().fill(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    assert all(torch.equal(packed.index[name].of(packed.buffers), before[name]) for name in tensors)


@pytest.mark.parametrize("mode", ["ema", "previous"])
def test_the_histories_of_a_stage_are_copied_in_one_go(mode: str) -> None:
    first, second, third = blocks_of_a_stage(mode)
    place = torch.zeros(45).split([15, 20, 10])
    assert len(list(_runs(zip(place, [first, second, third], strict=True)))) == 1
    assert len(list(_runs(zip(place, [first, third, second], strict=True)))) == 3
    apart = [torch.zeros(15), torch.zeros(20), torch.zeros(10)]
    assert len(list(_runs(zip(apart, [first, second, third], strict=True)))) == 3
