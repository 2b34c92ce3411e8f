"""The bytes that the planner promises are the bytes that the engine counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_pool import RankPool
from rank_tasks import train_epochs

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.planning import graphs
from gnnpipe_trainer.planning.main import make_planner

BUILT_IN = ["gcn", "sage", "gin", "gat", "gcnii", "resgcn"]
TOPOLOGIES = [(3, 1, 6), (2, 2, 6), (1, 3, 3)]  # stages, ways, chunks

Manifest = Callable[..., dict[str, Any]]


def counted(ranks: RankPool, content: dict[str, Any], folder: Path) -> dict[str, int]:
    """What the real engine sends in an epoch, all ranks together."""
    plan = make_plan(parse_job(content))
    trained = ranks.run(train_epochs, plan.ranks, content, str(folder), 1)
    kinds = ("pipeline", "graph", "gradient")
    moved = {kind: sum(rank.sent[0].get(kind, 0) for rank in trained) for kind in kinds}
    return {**moved, "total": sum(moved.values())}


def planned(content: dict[str, Any], folder: Path) -> dict[str, int]:
    job = parse_job(content)
    return make_planner(job, folder).forecast(make_plan(job)).volume.as_dict()


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("kind", BUILT_IN)
def test_bytes_of_every_built_in_model_are_exact(
    kind: str, topology: tuple[int, int, int], ranks: RankPool, manifest: Manifest, tmp_path: Path
) -> None:
    content = manifest(kind, 4, *topology)
    expected = counted(ranks, content, tmp_path)
    assert expected["total"] > 0
    assert planned(content, tmp_path) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"parallelism": {"wire": "bf16"}},
        {"training": {"precision": "fp64"}},
        {"training": {"precision": "fp64"}, "parallelism": {"wire": "bf16"}},
        {"parallelism": {"history": {"mode": "previous"}, "splitBackward": False}},
    ],
    ids=str,
)
def test_bytes_are_exact_in_every_number_format(
    change: dict[str, Any], ranks: RankPool, manifest: Manifest, tmp_path: Path
) -> None:
    content = manifest("gcnii", 4, 2, 2, 6, **change)
    assert planned(content, tmp_path) == counted(ranks, content, tmp_path)


@pytest.mark.parametrize(
    ("kind", "dropout", "share"),
    [("gcn", 0.0, 0.5), ("gcn", 0.5, 0.25), ("gcnii", 0.5, 0.5), ("resgcn", 0.5, 1.0)],
)
def test_skipped_zeros_are_forecast_as_a_share(
    kind: str, dropout: float, share: float, manifest: Manifest, tmp_path: Path
) -> None:
    content = manifest(kind, 4, 2, 1, 4)
    content["spec"]["model"]["dropout"] = dropout
    everything = planned(content, tmp_path)["pipeline"]
    content["spec"]["parallelism"]["wireZeros"] = "skip"
    bits = 0 if kind == "resgcn" else 1 / 64
    assert planned(content, tmp_path)["pipeline"] == pytest.approx(everything * (share + bits), rel=1e-3)


def test_auto_is_forecast_to_leave_zeros_out_where_bytes_travel_for_long(
    manifest: Manifest, tmp_path: Path
) -> None:
    content = manifest("gcn", 4, 2, 1, 4)
    seconds, moved = {}, {}
    for rate in (1e5, 1e12):
        for zeros in ("auto", "send", "skip"):
            content["spec"]["parallelism"]["wireZeros"] = zeros
            job = parse_job(content)
            planner = make_planner(job, tmp_path)
            slow = replace(planner, hardware=replace(planner.hardware, border_rate=rate))
            forecast = slow.forecast(make_plan(job))
            seconds[rate, zeros], moved[rate, zeros] = forecast.seconds, forecast.volume.pipeline
    assert (seconds[1e5, "auto"], moved[1e5, "auto"]) == (seconds[1e5, "skip"], moved[1e5, "skip"])
    assert (seconds[1e12, "auto"], moved[1e12, "auto"]) == (seconds[1e12, "send"], moved[1e12, "send"])
    assert seconds[1e5, "skip"] < seconds[1e5, "send"]


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_bytes_are_exact_on_a_directed_graph(
    kind: str, ranks: RankPool, manifest: Manifest, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    edges = generator.integers(0, 60, (2, 200))
    masks = {f"{part}_mask": np.arange(60) % 3 == i for i, part in enumerate(("train", "val", "test"))}
    features, labels = generator.normal(size=(60, 5)).astype(np.float32), np.arange(60) % 4
    np.savez(tmp_path / "directed.npz", x=features, y=labels, edge_index=edges, **masks)
    content = manifest(kind, 4, 2, 2, 4)
    content["spec"]["graph"] = {"source": "npz", "path": str(tmp_path / "directed.npz"), "directed": True}
    assert planned(content, tmp_path) == counted(ranks, content, tmp_path)


@pytest.mark.parametrize(("ways", "chunks"), [(1, 6), (2, 6), (3, 3)])
def test_a_cut_has_the_mirrors_and_halos_of_the_chunks_that_training_gets(
    ways: int, chunks: int, manifest: Manifest, tmp_path: Path
) -> None:
    job = parse_job(manifest("gcn", 4, 2, ways, chunks))
    graph = chunked_graph(job.spec.graph, ways, chunks, tmp_path, tmp_path / "cache")
    cut = make_planner(job, tmp_path).graph.cut(ways, chunks, stages=2)
    assert cut.mirrors == graph.mirrors()
    assert cut.rows.flatten().tolist() == np.diff(graph.bounds).tolist()
    assert cut.chunk_halo.flatten().tolist() == [graph.halo(c).size for c in range(chunks)]
    assert 1 - cut.same_slot.sum() / cut.entries.sum() == pytest.approx(2 * graph.stale_share())


def test_bytes_stay_exact_where_a_large_graph_is_cut_into_ways_only(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = manifest("gcnii", 4, 2, 2, 8)
    finely = make_planner(parse_job(content), tmp_path).forecast(make_plan(parse_job(content)))
    monkeypatch.setattr(graphs, "MOST_EDGES_TO_CUT_FINELY", 0)
    coarsely = make_planner(parse_job(content), tmp_path).forecast(make_plan(parse_job(content)))
    assert coarsely.volume == finely.volume
    assert coarsely.seconds == pytest.approx(finely.seconds, rel=0.1)
