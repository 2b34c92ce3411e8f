"""The planner comes near what the authors of GNNPipe measured on their machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gnnpipe_trainer.planning.reproduce import (
    Cell,
    depth_cells,
    median_error,
    strong_cells,
    time_cells,
    volume_cells,
    weak_cells,
    winners,
)
from gnnpipe_trainer.planning.scaling_page import published_section


def test_volumes_of_all_published_cells_agree_to_five_percent() -> None:
    cells = volume_cells()
    assert len(cells) == 48
    assert max(abs(cell.error) for cell in cells) < 0.05


@pytest.mark.parametrize(
    "cells", [strong_cells, weak_cells, depth_cells, time_cells], ids=lambda f: f.__name__
)
def test_epoch_times_agree_to_twenty_percent_in_the_median(cells: Callable[[], list[Cell]]) -> None:
    assert median_error(cells()) < 0.20


def test_the_quicker_mode_is_forecast_in_nine_of_ten_published_pairs() -> None:
    pairs = [
        pair for cells in (strong_cells, weak_cells, depth_cells, time_cells) for pair in winners(cells())
    ]
    assert sum(same for _, same in pairs) >= 0.9 * len(pairs), [name for name, same in pairs if not same]


def test_the_page_on_scaling_holds_these_very_numbers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert published_section() in page, (
        "make it again: python -m gnnpipe_trainer.planning.scaling_page docs/scaling.md"
    )
