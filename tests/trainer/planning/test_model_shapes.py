"""The planner's formulas describe the models that are really built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.planning.own_shape import shape_of
from gnnpipe_trainer.planning.shape import built_in_shape

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {}),
    ("gcn", {"norm": "layer"}),
    ("sage", {"norm": "layer"}),
    ("gin", {}),
    ("gin", {"train_eps": True, "norm": "layer"}),
    ("gat", {"heads": 2}),
    ("gat", {"heads": 2, "concat": False, "norm": "layer"}),
    ("gcnii", {}),
    ("resgcn", {}),
]


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize(("kind", "options"), MODELS, ids=str)
def test_widths_and_parameters_are_those_of_the_built_model(
    kind: str, options: dict[str, Any], layers: int, job: Callable[..., GNNPipeJob]
) -> None:
    spec = job(kind, layers, stages=1, model={"options": options}).spec.model
    planned = built_in_shape(spec, features=10, classes=4)
    built = shape_of(build_model(spec, 10, 4), 10, 4)
    for mine, real in zip(planned.blocks, built.blocks, strict=True):
        assert mine.message_width == real.message_width
        assert mine.widths == real.widths
        assert mine.edges == real.edges
        assert mine.constant == real.constant
        assert mine.parameters == real.parameters
    assert planned.traits == built.traits
    assert planned.encoder.parameters == built.encoder.parameters
    assert planned.decoder.parameters == built.decoder.parameters
    if kind != "gat":  # whose attention vectors are matrices to torch
        assert [b.multiplies for b in planned.blocks] == [b.multiplies for b in built.blocks]
