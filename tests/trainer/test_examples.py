"""Every manifest in examples/ trains as it is; only the number of epochs is cut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gnnpipe_trainer.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Those that bring their own data or size: two read a file of the user's, bench-* are for measuring.
OWN_FILES = {"squirrel", "cora"}
TRAINED = [
    p for p in sorted(EXAMPLES.glob("*.yaml")) if p.stem not in OWN_FILES and not p.stem.startswith("bench")
]


def train(path: Path, out: Path, *settings: str) -> dict[str, object]:
    sets = [part for setting in settings for part in ("--set", setting)]
    assert main(["run", str(path), "--out", str(out), *sets]) == 0
    result: dict[str, object] = json.loads((out / "result.json").read_text())
    return result


@pytest.mark.parametrize("path", TRAINED, ids=lambda p: p.stem)
def test_the_example_trains(path: Path, tmp_path: Path) -> None:
    result = train(path, tmp_path / "out", "spec.training.epochs=3")
    lines = [json.loads(line) for line in (tmp_path / "out" / "epochs.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert result["job"] == path.stem
    assert lines[-1]["loss"] == result["loss"]


def test_squirrel_trains_from_a_file_in_the_public_format(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folds = rng.integers(0, 3, (10, 200))
    np.savez(
        tmp_path / "squirrel.npz",
        node_features=rng.normal(size=(200, 12)).astype(np.float32),
        node_labels=rng.integers(0, 5, 200),
        edges=rng.integers(0, 200, (900, 2)),
        train_masks=folds == 0,
        val_masks=folds == 1,
        test_masks=folds == 2,
    )
    result = train(
        EXAMPLES / "squirrel.yaml",
        tmp_path / "out",
        f"spec.graph.path={tmp_path / 'squirrel.npz'}",
        "spec.graph.volume=null",
        "spec.training.epochs=2",
    )
    plan = result["plan"]
    assert isinstance(plan, dict)
    assert plan["layersPerStage"] == [8, 8, 8, 8]
    assert (
        result["historyGradients"] == "last"
    )  # hardly an edge inside a chunk: almost half of them are stale
    assert result["historyCorrection"] == "mean"


def test_cora_trains_from_a_file_with_its_masks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folds = rng.integers(0, 3, 200)
    np.savez(
        tmp_path / "cora.npz",
        x=rng.normal(size=(200, 12)).astype(np.float32),
        y=rng.integers(0, 7, 200),
        edge_index=rng.integers(0, 200, (2, 500)),
        train_mask=folds == 0,
        val_mask=folds == 1,
        test_mask=folds == 2,
    )
    result = train(
        EXAMPLES / "cora.yaml",
        tmp_path / "out",
        f"spec.graph.path={tmp_path / 'cora.npz'}",
        "spec.graph.volume=null",
        "spec.training.epochs=2",
    )
    plan = result["plan"]
    assert isinstance(plan, dict)
    assert (plan["stages"], sum(plan["layersPerStage"])) == (2, 64)
