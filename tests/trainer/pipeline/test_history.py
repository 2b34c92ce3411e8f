"""The buffer that a block's neighbours read from."""

from __future__ import annotations

import pytest
import torch

from gnnpipe_api.job import HistorySpec
from gnnpipe_trainer.pipeline.history import History, side_by_side


def filled(spec: HistorySpec, dtype: torch.dtype, before: torch.Tensor) -> History:
    (history,) = side_by_side(*before.shape[:1], [before.shape[1]], spec, dtype, torch.device("cpu"))
    history.seed(before)
    return history


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["ema", "frozen"])
def test_the_shift_is_the_mean_of_what_has_come_by_in_this_epoch(mode: str, dtype: torch.dtype) -> None:
    """fp32 is blended by the compiled loop where there is one, the others by torch."""
    torch.manual_seed(0)
    before, fresh = torch.randn(60, 16).to(dtype).double(), torch.randn(60, 16).to(dtype).double() + 2
    fresh = fresh.to(dtype).double()
    corrected, plain = (
        filled(HistorySpec.model_validate({"mode": mode, "correction": asked}), dtype, before)
        for asked in ("mean", "none")
    )
    for epoch in range(2):  # a new epoch starts from nothing
        seen = corrected.live.double().clone()
        for first, last in ((10, 30), (30, 60), (0, 10)):
            rows = slice(first, last)
            corrected.push(rows, fresh[rows].to(dtype))
            plain.push(rows, fresh[rows].to(dtype))
            come_by = slice(10, last) if last > 10 else slice(0, 60)
            moved = (fresh - seen)[come_by].mean(0)
            torch.testing.assert_close(corrected.shift.double(), moved, rtol=1e-5, atol=1e-5)
        assert torch.equal(corrected.coming, plain.coming), f"epoch {epoch}: the history itself is no other"
        assert not plain.shift.any()
        corrected.end_epoch()
        plain.end_epoch()


def test_halo_rows_move_no_mean() -> None:
    """They are counted where they are at home."""
    history = filled(HistorySpec.model_validate({"correction": "mean"}), torch.float32, torch.zeros(8, 4))
    history.push(slice(0, 4), torch.ones(4, 4))
    history.push_halo(slice(4, 8), torch.full((4, 4), 5.0))
    assert torch.equal(history.shift, torch.ones(4))
