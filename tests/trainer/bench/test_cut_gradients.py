"""The rules of benchmarks/cut_gradients.py: what each mends, told at weights that stand still."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnpipe_api.load import parse_job

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from accuracy_run import alone
from at_once import AtOnce, SumAtOnce
from cut_gradients import FreshForward, WholeGradient

LAYERS = 4


def gradient(folder: Path, chunks: int, sums: type[SumAtOnce], epochs: int, kept: str = "drop") -> Tensor:
    """Of the last of some epochs in which the weights are not changed."""
    manifest: dict[str, Any] = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "cut-gradients"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 150, "averageDegree": 6, "classes": 4},
            "model": {"kind": "gcnii", "layers": LAYERS, "hidden": 8, "dropout": 0.0},
            "training": {"epochs": epochs, "precision": "fp64", "device": "cpu"},
            "parallelism": {
                "stages": 1 if chunks == 1 else 2,
                "chunks": chunks,
                "history": {"gradients": kept},
            },
        },
    }
    with alone():
        run = AtOnce.of(parse_job(manifest), folder, sums)
        for epoch in range(epochs):
            run.engine.model.zero_grad()
            run.train_epoch(epoch)
    return torch.cat([p.grad.flatten() for p in run.engine.parameters if p.grad is not None])


@pytest.mark.parametrize(
    ("kept", "sums", "epochs", "whole"),
    [
        ("drop", SumAtOnce, LAYERS + 1, False),
        ("drop", FreshForward, LAYERS + 1, False),
        ("drop", WholeGradient, 1, True),
        ("last", SumAtOnce, 1, False),
        ("last", SumAtOnce, LAYERS + 1, True),  # what a layer's readers sent back is there one epoch later
    ],
)
def test_where_weights_stand_still_mended_gradients_are_the_exact_ones(
    tmp_path: Path, kept: str, sums: type[SumAtOnce], epochs: int, whole: bool
) -> None:
    exact = gradient(tmp_path, 1, SumAtOnce, 1)
    ours = gradient(tmp_path, 8, sums, epochs, kept)
    assert torch.allclose(ours, exact, rtol=1e-9, atol=1e-12) is whole
