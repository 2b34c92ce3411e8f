"""Gradients that history's readers sent back are part of a checkpoint, and one without them serves as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.state import TrainingState
from gnnpipe_trainer.graph.chunks import cut
from gnnpipe_trainer.graph.sources import load_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline.engine import Engine
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups
from gnnpipe_trainer.weights import Best, stage_state


def state_of_a_stage(gradients: str) -> TrainingState:
    job = parse_job(
        {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "kept"},
            "spec": {
                "graph": {"source": "synthetic", "vertices": 60, "averageDegree": 6, "classes": 4},
                "model": {"kind": "gcnii", "layers": 4, "hidden": 8},
                "training": {"device": "cpu"},
                "parallelism": {"stages": 2, "chunks": 4, "history": {"gradients": gradients}},
            },
        }
    )
    plan = make_plan(job)
    graph = cut(load_graph(job.spec.graph, Path()), plan.ways, plan.chunks)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes)
    nobody = Groups(*[cast(Any, None)] * 4)
    engine = Engine(job, plan, graph, model, Topology(2, 1, 1), nobody, torch.device("cpu"))
    optimizer = make_optimizer(job.spec.training, engine.parameters)
    return TrainingState(engine, optimizer, Best(stage_state(engine, 1)))


def loaded(state: TrainingState) -> Callable[[Callable[[str], bool]], dict[str, Tensor]]:
    parts = (state.history(between=False).arrived(), state.rest())
    saved = {name: spot.of(p.buffers).clone() for p in parts for name, spot in p.index.items()}
    return lambda wanted: {name: tensor for name, tensor in saved.items() if wanted(name)}


def kept(state: TrainingState) -> list[Tensor]:
    return [g.kept_gradients for g in state.engine.stage.gathers if g.kept_gradients is not None]


@pytest.mark.parametrize("read", ["last", "average"])
@pytest.mark.parametrize("written", ["last", "average", "drop"])
def test_resumed_gradients_are_those_of_the_checkpoint_or_none(written: str, read: str) -> None:
    before, after = state_of_a_stage(written), state_of_a_stage(read)
    for tensor in [*kept(before), *kept(after)]:
        tensor.normal_()
    after.restore(loaded(before), epochs_done=1, with_history=True)
    expected = kept(before) or [torch.zeros_like(tensor) for tensor in kept(after)]
    assert len(expected) == 2
    for found, wanted in zip(kept(after), expected, strict=True):
        assert torch.equal(found, wanted)
