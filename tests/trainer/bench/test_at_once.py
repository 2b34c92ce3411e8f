"""The accuracy grid's shortcut: all slots at once compute what the engine's stages compute slot by slot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool
from rank_tasks import train_epochs

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.optimizer import make_optimizer

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from accuracy_run import alone, train_cell, train_in_stages
from at_once import AtOnce

EPOCHS = 3


@pytest.fixture
def one_rank() -> Iterator[None]:
    with alone():
        yield


def manifest(kind: str, ways: int, history: dict[str, Any], **parallelism: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "at-once"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 150, "averageDegree": 6, "classes": 4},
            "model": {"kind": kind, "layers": 4, "hidden": 8, "dropout": 0.0},
            "training": {"epochs": EPOCHS, "precision": "fp64", "device": "cpu"},
            "parallelism": {"stages": 2, "ways": ways, "chunks": 8, "history": history, **parallelism},
        },
    }


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("kind", "ways", "history", "parallelism"),
    [
        ("gcn", 1, {"mode": "ema"}, {}),
        ("gcnii", 2, {"mode": "ema"}, {}),
        ("gcnii", 2, {"mode": "ema", "gradients": "last"}, {}),
        ("gcnii", 2, {"mode": "ema", "gradients": "drop"}, {}),
        ("resgcn", 1, {"mode": "frozen", "refreshEvery": 2, "warmup": "zeros"}, {"freshGradientFactor": 2.0}),
        ("sage", 1, {"mode": "shift"}, {"shuffleChunks": False}),
        ("sage", 2, {"mode": "shift"}, {}),
        ("sage", 2, {"mode": "previous"}, {}),
        ("gcnii", 1, {"correction": "mean"}, {"shuffleChunks": False}),
        ("gcnii", 2, {"correction": "none"}, {}),
        ("resgcn", 2, {"correction": "mean", "gradients": "last", "warmupEpochs": 1}, {}),
        ("gcn", 2, {"mode": "frozen", "refreshEvery": 2, "correction": "mean"}, {}),
        ("gcn", 2, {"mode": "ema", "gradients": "average", "decay": 0.6}, {}),
        ("gcnii", 1, {"mode": "ema", "gradients": "last", "warmupEpochs": 2}, {}),
        ("gcn", 2, {"mode": "ema", "warmupEpochs": 1}, {"freshGradientFactor": 2.0}),
        ("gat", 1, {"mode": "ema"}, {}),
        ("gat", 1, {"mode": "previous", "gradients": "last"}, {}),
    ],
)
def test_gradients_are_those_of_the_stages(
    ranks: RankPool,
    tmp_path: Path,
    kind: str,
    ways: int,
    history: dict[str, Any],
    parallelism: dict[str, Any],
) -> None:
    job = parse_job(manifest(kind, ways, history, **parallelism))
    here = AtOnce.of(job, tmp_path)
    settled = here.job.manifest()  # what auto has come to: engines of tests take jobs as they are
    trained = ranks.run(train_epochs, 2 * ways, settled, str(tmp_path), EPOCHS)
    optimizer = make_optimizer(job.spec.training, here.engine.parameters)
    for epoch in range(EPOCHS):
        loss = here.train_epoch(epoch)
        assert loss == pytest.approx(sum(rank.losses[epoch] for rank in trained), rel=1e-10)
        theirs = {name: value for rank in trained for name, value in rank.gradients[epoch].items()}
        for name, parameter in here.engine.model.named_parameters():
            ours = 0.0 if parameter.grad is None else parameter.grad.numpy()
            np.testing.assert_allclose(theirs[name], ours, atol=1e-9)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("parallelism", "averaging", "schedule"),
    [
        ({"stages": 1, "chunks": 1}, {"mode": "ema"}, {}),
        ({"stages": 2, "chunks": 16}, {}, {}),  # so much is stale that weights are averaged
        ({"stages": 2, "chunks": 8}, {"mode": "none"}, {"mode": "cosine", "warmupEpochs": 5}),
    ],
    ids=str,
)
def test_a_cell_is_evaluated_as_gnnpipe_run_evaluates(
    tmp_path: Path, parallelism: dict[str, Any], averaging: dict[str, Any], schedule: dict[str, Any]
) -> None:
    job = manifest("gcn", 1, {})
    job["spec"]["training"] |= {"epochs": 20, "evaluateEvery": 1, "averaging": averaging}
    job["spec"]["training"]["learningRateSchedule"] = schedule
    job["spec"]["graph"] |= {"averageDegree": 16, "homophily": 0.3}
    job["spec"]["parallelism"] = parallelism
    with alone():
        ours = train_cell(job, tmp_path)
    theirs = train_in_stages(job, tmp_path)
    assert {field: ours[field] for field in theirs} == theirs
    if averaging:
        return
    assert ours["settled"]["averaging"] == "tail"
    job["spec"]["training"]["averaging"] = {"mode": "none"}
    with alone():
        assert train_cell(job, tmp_path)["validation"] != ours["validation"]
