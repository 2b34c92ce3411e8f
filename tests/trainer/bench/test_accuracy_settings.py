"""The grid's settings are exact training's choice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from accuracy_settings import FINALISTS, SEEDS, Kept, candidates, search

CELL = "cora/gcn-4"


def kept(tmp_path: Path, *means: float) -> Kept:
    """The finalists' best validation, in the order of the candidates; all others failed."""
    path = tmp_path / "accuracy_settings.jsonl"
    lines = [
        {"cell": CELL, "settings": settings, "seed": seed, "val": means[i] if i < len(means) else 0.1}
        for i, settings in enumerate(candidates("cora"))
        for seed in (SEEDS if i < FINALISTS else SEEDS[:1])
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Kept(path)


def test_the_best_wins_if_no_slower_one_is_as_good(tmp_path: Path) -> None:
    settings = candidates("cora")
    assert kept(tmp_path, 0.70, 0.72, 0.71, 0.75, 0.74).winner(CELL) == settings[3]
    assert {each.learning_rate for each in settings[:3]} == {min(each.learning_rate for each in settings)}
    assert kept(tmp_path, 0.70, 0.745, 0.742, 0.75, 0.74).winner(CELL) == settings[1]


def test_what_is_known_is_not_trained_again(tmp_path: Path) -> None:
    known = kept(tmp_path, 0.70, 0.72, 0.71, 0.75, 0.74, 0.73)
    before = known.path.read_text()
    search(known, CELL, tmp_path / "where no graph lies")
    assert known.path.read_text() == before
