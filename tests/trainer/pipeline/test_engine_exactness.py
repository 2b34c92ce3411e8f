"""The spine: the engine equals plain full-batch training where it should, and the written rule everywhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulation import Emulated, Emulation
from rank_pool import RankPool
from rank_tasks import Trained, train_epochs

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.loss import loss_sum
from gnnpipe_trainer.models.plain import plain_network
from gnnpipe_trainer.optimizer import make_optimizer

BUILT_IN = ["gcn", "sage", "gin", "gat", "gcnii", "resgcn"]
TOPOLOGIES = [(2, 1, 5), (3, 1, 5), (2, 2, 6), (1, 3, 3)]  # stages, ways, chunks
MODES = ["ema", "frozen", "previous", "shift"]

CUSTOM = """
from torch_geometric.nn import GATv2Conv, TransformerConv
from gnnpipe_trainer.models.block import ConvBlock, FirstTensor, Model, RawFeatures

def build(features, classes, hidden, layers, dropout, conv="gatv2", **options):
    make = {"gatv2": lambda i, o: GATv2Conv(i, o), "transformer": lambda i, o: TransformerConv(i, o)}[conv]
    widths = [features] + [hidden] * (layers - 1) + [classes]
    blocks = [ConvBlock(make(i, o), i, (o,)) for i, o in zip(widths, widths[1:])]
    return Model(RawFeatures(), blocks, FirstTensor())
"""


def manifest(
    kind: str = "gcn",
    topology: tuple[int, int, int] = (2, 1, 5),
    precision: str = "fp64",
    mode: str = "ema",
    layers: int = 4,
    graph: dict[str, Any] | None = None,
    **parallelism: Any,
) -> dict[str, Any]:
    stages, ways, chunks = topology
    options = {}
    if ":" in kind:
        kind, options["conv"] = kind.rsplit("/", 1)
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "exact"},
        "spec": {
            "graph": {
                "source": "synthetic",
                "vertices": 150,
                "averageDegree": 6,
                "classes": 4,
                "features": 10,
            }
            | (graph or {}),
            "model": {"kind": kind, "layers": layers, "hidden": 8, "dropout": 0.0, "options": options},
            "training": {
                "epochs": 20,
                "precision": precision,
                "learningRate": 0.01,
                "seed": 3,
                "device": "cpu",
            },
            "parallelism": {
                "stages": stages,
                "ways": ways,
                "chunks": chunks,
                "history": {"mode": mode} | ({"refreshEvery": 2} if mode == "frozen" else {}),
                **parallelism,
            },
        },
    }


def whole_loss(trained: list[Trained]) -> list[float]:
    return [float(sum(shares)) for shares in zip(*(t.losses for t in trained), strict=True)]


def whole_gradients(trained: list[Trained], epoch: int) -> dict[str, Any]:
    return {name: g for t in trained for name, g in t.gradients[epoch].items()}


def emulate(content: dict[str, Any], folder: Path, epochs: int) -> Emulated:
    job = parse_job(content)
    plan = make_plan(job)
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, folder, folder / "cache")
    torch.manual_seed(job.spec.training.seed)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, folder)
    return Emulation(job, plan, graph, model).train(epochs)


def assert_same_gradients(trained: list[Trained], expected: Emulated) -> None:
    for epoch, gradients in enumerate(expected.gradients):
        measured = whole_gradients(trained, epoch)
        assert measured.keys() == gradients.keys()
        scale = max(float(np.abs(g).max()) for g in gradients.values())
        for name, gradient in gradients.items():
            error = float(np.abs(measured[name] - gradient).max()) / scale
            assert error < 1e-9, f"epoch {epoch}, {name}: relative error {error}"
    assert whole_loss(trained) == pytest.approx(expected.losses, rel=1e-10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "custom_blocks.py").write_text(CUSTOM)
    return tmp_path


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_one_chunk_trains_like_plain_torch_geometric(
    ranks: RankPool, folder: Path, kind: str, precision: str
) -> None:
    content = manifest(kind, (1, 1, 1), precision)
    expected = plain_losses(content, folder, epochs=20)
    tolerance = 1e-10 if precision == "fp64" else 1e-5
    for stages in (1, 2, 4):
        content["spec"]["parallelism"]["stages"] = stages
        losses = whole_loss(ranks.run(train_epochs, stages, content, str(folder), 20))
        assert losses == pytest.approx(expected, rel=tolerance), f"{stages} stages"


@pytest.mark.parametrize("ways", [2, 3, 4])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_graph_parallelism_trains_like_plain_torch_geometric(
    ranks: RankPool, folder: Path, kind: str, ways: int
) -> None:
    content = manifest(kind, (1, ways, ways))
    losses = whole_loss(ranks.run(train_epochs, ways, content, str(folder), 20))
    assert losses == pytest.approx(plain_losses(content, folder, epochs=20), rel=1e-10)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda t: "x".join(map(str, t)))
@pytest.mark.parametrize("kind", [*BUILT_IN, "custom_blocks:build/gatv2", "custom_blocks:build/transformer"])
def test_gradients_equal_the_emulated_rule(
    ranks: RankPool, folder: Path, kind: str, topology: tuple[int, int, int]
) -> None:
    content = manifest(kind, topology)
    trained = ranks.run(train_epochs, topology[0] * topology[1], content, str(folder), 3)
    assert_same_gradients(trained, emulate(content, folder, 3))


@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("warmup", ["exact", "zeros"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["gcnii", "gat"])
def test_every_history_mode_equals_the_emulated_rule(
    ranks: RankPool, folder: Path, kind: str, mode: str, warmup: str, factor: float
) -> None:
    content = manifest(kind, (2, 2, 6), mode=mode, freshGradientFactor=factor)
    content["spec"]["parallelism"]["history"]["warmup"] = warmup
    trained = ranks.run(train_epochs, 4, content, str(folder), 5)
    assert_same_gradients(trained, emulate(content, folder, 5))


@pytest.mark.parametrize(
    ("kind", "topology"),
    [
        ("gcn", (2, 2, 6)),
        ("sage", (2, 1, 5)),
        ("gat", (2, 2, 6)),
        ("gcnii", (2, 2, 6)),
        ("resgcn", (3, 1, 5)),
    ],
)
@pytest.mark.parametrize("gradients", ["last", "average"])
def test_gradients_of_the_epochs_before_flow_as_in_the_emulated_rule(
    ranks: RankPool, folder: Path, kind: str, topology: tuple[int, int, int], gradients: str
) -> None:
    content = manifest(kind, topology)
    content["spec"]["parallelism"]["history"]["gradients"] = gradients
    trained = ranks.run(train_epochs, topology[0] * topology[1], content, str(folder), 4)
    assert_same_gradients(trained, emulate(content, folder, 4))


@pytest.mark.parametrize("history", [{"mode": "ema"}, {"mode": "frozen", "refreshEvery": 2}], ids=str)
@pytest.mark.parametrize("topology", [(2, 1, 5), (2, 2, 6)], ids=str)
@pytest.mark.parametrize(("kind", "gradients"), [("gcnii", "drop"), ("gcnii", "last"), ("gat", "drop")])
def test_history_that_follows_the_mean_equals_the_emulated_rule(
    ranks: RankPool,
    folder: Path,
    kind: str,
    gradients: str,
    topology: tuple[int, int, int],
    history: dict[str, Any],
) -> None:
    content = manifest(kind, topology)
    asked = {**history, "gradients": gradients, "correction": "mean"}
    content["spec"]["parallelism"]["history"] = asked
    trained = ranks.run(train_epochs, topology[0] * topology[1], content, str(folder), 4)
    corrected = emulate(content, folder, 4)
    assert_same_gradients(trained, corrected)
    asked["correction"] = "none"
    assert emulate(content, folder, 4).losses != pytest.approx(corrected.losses, rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("kind", "topology", "gradients"),
    [
        ("gcn", (3, 1, 5), "drop"),
        ("gcn", (2, 1, 5), "average"),
        ("gcnii", (2, 1, 5), "last"),
        ("resgcn", (2, 2, 6), "last"),
        ("gat", (2, 2, 6), "last"),
    ],
)
def test_epochs_that_warm_up_are_exact_and_history_takes_over_from_them(
    ranks: RankPool, folder: Path, kind: str, topology: tuple[int, int, int], gradients: str, mode: str
) -> None:
    content = manifest(kind, topology, mode=mode)
    content["spec"]["parallelism"]["history"] |= {"gradients": gradients, "warmupEpochs": 2}
    trained = ranks.run(train_epochs, topology[0] * topology[1], content, str(folder), 5)
    plain = plain_losses(content, folder, epochs=3)
    assert whole_loss(trained)[:2] == pytest.approx(plain[:2], rel=1e-10)
    assert whole_loss(trained)[2] != pytest.approx(plain[2], rel=1e-10)
    assert_same_gradients(trained, emulate(content, folder, 5))


def test_epochs_that_warm_up_send_as_many_bytes(ranks: RankPool, folder: Path) -> None:
    content = manifest("resgcn", (2, 2, 6), "fp32")
    content["spec"]["parallelism"]["history"]["warmupEpochs"] = 1
    trained = ranks.run(train_epochs, 4, content, str(folder), 2)
    warm, after = ([rank.sent[epoch] for rank in trained] for epoch in (0, 1))
    assert warm == after
    assert sum(sent["pipeline"] for sent in warm) > 0


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_directed_graphs_equal_the_emulated_rule(ranks: RankPool, folder: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    masks = rng.permutation(np.repeat([0, 1, 2], 40))
    np.savez(
        folder / "directed.npz",
        x=rng.normal(size=(120, 6)).astype(np.float32),
        y=rng.integers(0, 3, 120),
        edge_index=rng.integers(0, 120, (2, 500)),
        train_mask=masks == 0,
        val_mask=masks == 1,
        test_mask=masks == 2,
    )
    content = manifest(kind, (2, 2, 6))
    content["spec"]["graph"] = {"source": "npz", "path": "directed.npz", "directed": True}
    trained = ranks.run(train_epochs, 4, content, str(folder), 3)
    assert_same_gradients(trained, emulate(content, folder, 3))


@pytest.mark.parametrize("kind", ["gcnii", "resgcn"])
def test_the_split_backward_changes_nothing(ranks: RankPool, folder: Path, kind: str) -> None:
    joint, split = (
        ranks.run(train_epochs, 3, manifest(kind, (3, 1, 5), splitBackward=value), str(folder), 3)
        for value in (False, True)
    )
    for epoch in range(3):
        expected = whole_gradients(joint, epoch)
        for name, gradient in whole_gradients(split, epoch).items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("kind", "tensors"), [("gcn", 1), ("resgcn", 1), ("gcnii", 2)])
@pytest.mark.parametrize("stages", [2, 3])
def test_pipeline_bytes_follow_the_formula(
    ranks: RankPool, folder: Path, kind: str, tensors: int, stages: int
) -> None:
    content = manifest(kind, (stages, 1, 5), "fp32")
    trained = ranks.run(train_epochs, stages, content, str(folder), 1)
    sent = sum(t.sent[0].get("pipeline", 0) for t in trained)
    assert sent == tensors * 2 * 4 * 8 * 150 * (stages - 1)


def test_hybrid_moves_each_mirrored_row_once_per_layer_and_direction(ranks: RankPool, folder: Path) -> None:
    content = manifest("resgcn", (2, 2, 6), "fp32")
    trained = ranks.run(train_epochs, 4, content, str(folder), 1)
    graph = chunked_graph(parse_job(content).spec.graph, 2, 6, folder, folder / "cache")
    sent = sum(t.sent[0].get("graph", 0) for t in trained)
    assert sent == 2 * 4 * 8 * 4 * graph.mirrors()


def plain_losses(content: dict[str, Any], folder: Path, epochs: int) -> list[float]:
    """Full-batch training of the real torch-geometric network with the same initial weights."""
    job = parse_job(content)
    plan = make_plan(job)
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, folder, folder / "cache")
    torch.manual_seed(job.spec.training.seed)
    dtype = torch.float64 if job.spec.training.precision == "fp64" else torch.float32
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, folder).to(dtype)
    network = plain_network(job.spec.model, graph.num_features, graph.num_classes).to(dtype)
    network.load_from(model)
    features = torch.from_numpy(np.array(graph.features)).to(dtype)
    labels = torch.from_numpy(np.array(graph.labels))
    mask = torch.from_numpy(np.array(graph.train_mask))
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.indptr))
    edges = torch.from_numpy(np.stack([np.array(graph.indices, dtype=np.int64), targets]))
    optimizer = make_optimizer(job.spec.training, list(network.parameters()))
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = loss_sum(network(features, edges), labels, mask) / mask.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
