"""Segments whose backward is written out train as autograd does, dropout and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.bench.one_rank import alone
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.engine import Engine, make_groups
from gnnpipe_trainer.pipeline.segment import HandSegment
from gnnpipe_trainer.pipeline.stage import Stage
from gnnpipe_trainer.pipeline.topology import Topology

EPOCHS = 3


def manifest(kind: str, dropout: float, norm: str, precision: str, classes: int = 4) -> dict[str, Any]:
    options = {} if kind == "gin" else {"norm": norm}
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "by-hand"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 300, "averageDegree": 6, "classes": classes},
            "model": {"kind": kind, "layers": 4, "hidden": 16, "dropout": dropout, "options": options},
            "training": {"epochs": EPOCHS, "precision": precision, "device": "cpu"},
            "parallelism": {"stages": 1, "chunks": 4, "history": {"gradients": "drop"}},
        },
    }


def train(written: dict[str, Any], folder: Path) -> tuple[list[float], dict[str, Tensor], int]:
    """Losses, the last epoch's gradients, and how many segments of a slot were done by hand; four slots in turn."""
    job = parse_job(written)
    plan, topology = make_plan(job), Topology(1, 1, 0)
    graph = chunked_graph(job.spec.graph, 1, plan.chunks, folder)
    torch.manual_seed(0)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, folder)
    with alone():
        groups = make_groups(topology, 60)
        engine = Engine(job, plan, graph, model, topology, groups, torch.device("cpu"), slots=4)
        engine.exact_pass(fill_history=True)
        losses = []
        for epoch in range(EPOCHS):
            model.zero_grad()
            losses.append(engine.train_epoch(epoch).loss)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    by_hand = sum(hand is not None for hand in engine.stage._hands)
    return losses, gradients, by_hand


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(
    ("dropout", "norm", "classes"),
    [
        (0.0, "none", 4),  # narrower than what is hidden: multiplied with before the last sum
        (0.4, "none", 4),
        (0.0, "none", 20),  # wider
        (0.4, "layer", 4),  # only the last, after which there is no norm
    ],
)
@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_by_hand_is_as_by_autograd(
    kind: str,
    dropout: float,
    norm: str,
    classes: int,
    precision: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = manifest(kind, dropout, norm, precision, classes)
    losses, gradients, by_hand = train(written, tmp_path)
    assert by_hand == (4 if norm == "none" else 1)
    monkeypatch.setattr(Stage, "_hand", lambda stage, index: None)
    theirs, their_gradients, by_hand = train(written, tmp_path)
    assert by_hand == 0
    close = {"rtol": 1e-12, "atol": 1e-14} if precision == "fp64" else {"rtol": 1e-3, "atol": 1e-6}
    assert losses == pytest.approx(theirs, rel=close["rtol"])
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], **close)


def test_what_nobody_wrote_out_is_left_to_autograd(tmp_path: Path) -> None:
    assert train(manifest("gin", 0.2, "none", "fp32"), tmp_path)[2] == 0


def test_nothing_by_hand_is_part_of_an_autograd_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep every slot's tensors alive."""
    kept: list[Tensor] = []
    backward = HandSegment.backward

    def watched(segment: HandSegment, *arguments: Any) -> Any:
        assert segment.leaves.gathered is not None
        kept.extend([segment.result, segment.own, segment.leaves.gathered])
        return backward(segment, *arguments)

    monkeypatch.setattr(HandSegment, "backward", watched)
    _, gradients, _ = train(manifest("sage", 0.4, "none", "fp64"), tmp_path)
    assert kept
    assert not any(tensor.requires_grad and not tensor.is_leaf for tensor in (*kept, *gradients.values()))
