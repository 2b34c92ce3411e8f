"""benchmarks/lateness.py: its histories are the averages they are called, its yardstick is exact, its ratios paired."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.pipeline.leaves import Leaves

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from accuracy_grid import MODES
from accuracy_run import alone, train_cell
from at_once import AtOnce, SumAtOnce
from lateness import RULES, Kept, PlainMean, Rising, Unbiased, Warming, epochs_until, table
from paired import ratio

EPOCHS = 4


def made(parallelism: dict[str, Any], dropout: float) -> dict[str, Any]:
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "lateness"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 150, "averageDegree": 6, "classes": 4},
            "model": {"kind": "gcnii", "layers": 2, "hidden": 8, "dropout": dropout},
            "training": {"epochs": EPOCHS, "precision": "fp64", "device": "cpu"},
            "parallelism": parallelism,
        },
    }


def trained(folder: Path, parallelism: dict[str, Any], sums: type[SumAtOnce], dropout: float) -> AtOnce:
    """After some epochs at weights that stand still; only dropout makes them differ."""
    with alone():
        run = AtOnce.of(parse_job(made(parallelism, dropout)), folder, sums)
        for epoch in range(EPOCHS):
            run.engine.model.zero_grad()
            run.train_epoch(epoch)
    return run


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (PlainMean, [1, 1, 1, 1]),
        (Rising, [1, 2, 3, 4]),
        (Unbiased, [0.9**3, 0.9**2, 0.9, 1]),
    ],
)
def test_a_history_that_warms_up_averages_the_epochs_and_forgets_its_start(
    tmp_path: Path, rule: type[Warming], weights: list[float]
) -> None:
    seen: list[Tensor] = []

    class Recorded(rule):  # type: ignore[misc, valid-type]
        def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
            seen.append(message.detach().clone())
            leaves: Leaves = super().read(slot, message)
            return leaves

    run = trained(tmp_path, {"stages": 2, "chunks": 8}, Recorded, dropout=0.5)
    blocks = [gather for gather in run.engine.stage.gathers if isinstance(gather, Recorded)]
    assert len(seen) == EPOCHS * len(blocks) > 0
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    for index, block in enumerate(blocks):
        expected = torch.einsum("e,erw->rw", share, torch.stack(seen[index :: len(blocks)]))
        torch.testing.assert_close(block.history.live, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("mode", "is_exact"), [("exact-again", True), ("drop", False)])
def test_without_dropout_exact_again_is_exact(tmp_path: Path, mode: str, is_exact: bool) -> None:
    def moved(mode: str) -> Tensor:
        run = trained(tmp_path, MODES[mode], SumAtOnce, dropout=0.0)
        return torch.cat([p.grad.flatten() for p in run.engine.parameters if p.grad is not None])

    assert torch.allclose(moved(mode), moved("exact"), rtol=1e-9, atol=1e-12) is is_exact


def test_ratios_are_of_the_seeds_that_both_have_and_those_that_never_got_there_are_counted(
    tmp_path: Path,
) -> None:
    assert ratio([(2, 1), (4, 3)]) == pytest.approx((1.5, 0.25))
    kept = Kept(tmp_path / "lateness.jsonl")
    for seed, exact, ours in [(100, 1, 2), (101, 3, 4), (102, 5, None)]:
        kept.keep(f"cora/gcn-4/{seed}", "exact", val=0.8, epochs=exact)
        kept.keep(f"cora/gcn-4/{seed}", "pipeline", epochs=ours)
    kept.keep("cora/gcn-8/100", "pipeline", epochs=9)
    rows = list(table(Kept(kept.path), "cora", "gcn-4"))
    assert rows == [["exact", "3", "0", "", ""], ["pipeline", "3", "1", "1.500 ± 0.250", ""]]


@pytest.mark.parametrize("schedule", [{}, {"mode": "cosine", "warmupEpochs": 10}], ids=str)
def test_epochs_to_a_target_are_counted_with_the_learning_rates_of_the_manifest(
    tmp_path: Path, schedule: dict[str, Any]
) -> None:
    manifest = made({"stages": 2, "chunks": 8}, dropout=0.0)
    manifest["spec"]["training"] |= {"epochs": 30, "evaluateEvery": 1, "learningRateSchedule": schedule}
    manifest["spec"]["training"]["averaging"] = {"mode": "none"}
    with alone():
        run = train_cell(manifest, tmp_path)
    epochs = 1 + next(i for i, value in enumerate(run["validation"]) if value >= run["val"])
    with alone():
        assert epochs_until(manifest, RULES["pipeline"], run["val"], 30) == epochs
