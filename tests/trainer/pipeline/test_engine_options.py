"""Options that trade precision, memory or time: what each may change, and what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool
from rank_tasks import Trained, buffer_rows, cuda_was_initialised, train_epochs

CORA = Path(__file__).resolve().parents[4] / "shared" / "data" / "cora.npz"


def manifest(kind: str, stages: int, ways: int, chunks: int, **parallelism: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "options"},
        "spec": {
            "graph": {
                "source": "synthetic",
                "vertices": 300,
                "averageDegree": 8,
                "classes": 4,
                "features": 16,
            },
            "model": {"kind": kind, "layers": 4, "hidden": 16, "dropout": 0.3},
            "training": {"epochs": 20, "learningRate": 0.01, "device": "cpu"},
            "parallelism": {"stages": stages, "ways": ways, "chunks": chunks, **parallelism},
        },
    }


def losses(trained: list[Trained]) -> list[float]:
    return [float(sum(shares)) for shares in zip(*(t.losses for t in trained), strict=True)]


@pytest.mark.parametrize("kind", ["gcnii", "gat"])
def test_recompute_gives_the_very_same_gradients(ranks: RankPool, tmp_path: Path, kind: str) -> None:
    """Also with dropout: its random numbers are drawn again, not anew."""
    kept, again = (
        ranks.run(train_epochs, 2, manifest(kind, 2, 1, 4, recompute=value), str(tmp_path), 4)
        for value in (False, True)
    )
    assert losses(kept) == losses(again)
    for one, other in zip(kept, again, strict=True):
        for name, gradient in one.gradients[-1].items():
            np.testing.assert_array_equal(gradient, other.gradients[-1][name])


def test_bf16_on_the_wire_halves_the_bytes_and_hardly_moves_the_loss(ranks: RankPool, tmp_path: Path) -> None:
    graph = (
        {"source": "npz", "path": str(CORA)} if CORA.exists() else manifest("gcn", 1, 1, 1)["spec"]["graph"]
    )
    full, half = (manifest("gcnii", 2, 1, 8, wire=wire) for wire in ("fp32", "bf16"))
    for content in (full, half):
        content["spec"]["graph"] = graph
    exact = ranks.run(train_epochs, 2, full, str(tmp_path), 50)
    rounded = ranks.run(train_epochs, 2, half, str(tmp_path), 50)
    assert rounded[0].sent[0]["pipeline"] * 2 == exact[0].sent[0]["pipeline"]
    assert losses(rounded) != losses(exact)
    assert losses(rounded)[-1] == pytest.approx(losses(exact)[-1], rel=0.01)


@pytest.mark.parametrize("correction", ["none", "mean"])
@pytest.mark.parametrize("topology", [(2, 1, 4), (2, 2, 4)])
def test_history_in_bf16_trains_alike(
    ranks: RankPool, tmp_path: Path, topology: tuple[int, int, int], correction: str
) -> None:
    world, asked = topology[0] * topology[1], {"history": {"correction": correction}}
    full = losses(ranks.run(train_epochs, world, manifest("resgcn", *topology, **asked), str(tmp_path), 10))
    narrow = manifest("resgcn", *topology, historyPrecision="bf16", **asked)
    assert losses(ranks.run(train_epochs, world, narrow, str(tmp_path), 10)) == pytest.approx(full, rel=0.03)


@pytest.mark.parametrize("kind", ["gcn", "gat", "gcnii", "resgcn"])
def test_bf16_training_follows_fp32(ranks: RankPool, tmp_path: Path, kind: str) -> None:
    content = manifest(kind, 2, 1, 4, history={"correction": "mean" if kind == "gcnii" else "none"})
    full = losses(ranks.run(train_epochs, 2, content, str(tmp_path), 10))
    content["spec"]["training"]["precision"] = "bf16"
    assert losses(ranks.run(train_epochs, 2, content, str(tmp_path), 10)) == pytest.approx(full, rel=0.05)


def test_the_same_seed_gives_the_same_losses_bit_for_bit(ranks: RankPool, tmp_path: Path) -> None:
    content = manifest("gcnii", 2, 2, 4)
    first, second = (losses(ranks.run(train_epochs, 4, content, str(tmp_path), 6)) for _ in range(2))
    assert first == second
    content["spec"]["training"]["seed"] = 1
    assert losses(ranks.run(train_epochs, 4, content, str(tmp_path), 6)) != first


def test_ways_share_the_buffers(ranks: RankPool, tmp_path: Path) -> None:
    """Two ways hold half the rows each, plus the halo; the authors' system holds everything everywhere."""
    content = manifest("gcnii", 2, 1, 4)
    whole = ranks.run(buffer_rows, 2, content, str(tmp_path))
    content["spec"]["parallelism"].update(ways=2)
    shared = ranks.run(buffer_rows, 4, content, str(tmp_path))
    assert whole == [300, 300]
    assert all(rows < 300 for rows in shared)


def test_no_cuda_is_touched_on_the_cpu_path(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(cuda_was_initialised, 2, manifest("gcn", 2, 1, 4), str(tmp_path)) == [False, False]
