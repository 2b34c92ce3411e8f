"""`history.gradients: auto`: earlier gradients only where much is stale; which, is a matter of the model's blocks.
`history.correction: auto` likewise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool
from rank_tasks import settled_history

from gnnpipe_api.job import HistorySpec, ParallelismSpec
from gnnpipe_trainer.staleness.carry import LEAST_STALE_EDGES, LEAST_TO_CORRECT, carried, correction

ABOVE, BELOW = LEAST_STALE_EDGES, LEAST_STALE_EDGES - 0.01


@pytest.mark.parametrize(
    ("asked", "bypass", "summed", "stale_edges", "chosen"),
    [
        ({}, True, True, ABOVE, "last"),
        ({}, True, True, BELOW, "drop"),
        ({}, False, True, ABOVE, "average"),
        ({}, False, True, BELOW, "drop"),
        ({}, False, False, ABOVE, "drop"),  # a conv's gradients are not averaged
        ({}, True, False, ABOVE, "last"),
        ({"freshGradientFactor": 2.0}, True, True, ABOVE, "drop"),  # these make up for the cut already
        ({"freshGradientFactor": 2.0}, False, True, ABOVE, "drop"),
        ({"history": {"gradients": "drop"}}, True, True, ABOVE, "drop"),
        ({"history": {"gradients": "last"}}, False, True, BELOW, "last"),
    ],
)
def test_auto_takes_earlier_gradients_only_where_they_help(
    asked: dict[str, Any], bypass: bool, summed: bool, stale_edges: float, chosen: str
) -> None:
    assert carried(ParallelismSpec.model_validate(asked), bypass, summed, stale_edges) == chosen


@pytest.mark.parametrize(
    ("asked", "follows_mean", "stale_edges", "chosen"),
    [
        ({}, True, LEAST_TO_CORRECT, "mean"),
        ({}, True, LEAST_TO_CORRECT - 0.01, "none"),
        ({}, False, 0.5, "none"),
        ({"mode": "frozen"}, True, 0.5, "none"),
        ({"mode": "previous"}, True, 0.5, "none"),
        ({"correction": "none"}, True, 0.5, "none"),
        ({"correction": "mean"}, False, 0.0, "mean"),
        ({"mode": "frozen", "correction": "mean"}, False, 0.5, "mean"),
    ],
)
def test_auto_corrects_the_moving_average_of_blocks_that_say_so(
    asked: dict[str, Any], follows_mean: bool, stale_edges: float, chosen: str
) -> None:
    assert correction(HistorySpec.model_validate(asked), follows_mean, stale_edges) == chosen


def manifest(kind: str, stages: int, ways: int, chunks: int, homophily: float) -> dict[str, Any]:
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "carried"},
        "spec": {
            "graph": {
                "source": "synthetic",
                "vertices": 240,
                "averageDegree": 16,
                "classes": 4,
                "homophily": homophily,
            },
            "model": {"kind": kind, "layers": 4, "hidden": 8},
            "training": {"epochs": 2, "device": "cpu"},
            "parallelism": {"stages": stages, "ways": ways, "chunks": chunks},
        },
    }


@pytest.mark.parametrize(
    ("kind", "topology", "chosen"),
    [
        ("gcnii", (2, 2, 16), ("last", "mean")),
        ("sage", (2, 1, 16), ("last", "none")),
        ("gcn", (2, 2, 16), ("average", "none")),
        ("gat", (2, 1, 16), ("drop", "none")),
        ("gcnii", (2, 1, 2), ("drop", "mean")),  # in two halves a quarter of the edges is stale
        ("gcn", (2, 1, 2), ("drop", "none")),
        ("gcnii", (1, 2, 2), ("drop", "none")),  # nothing is
    ],
)
def test_all_ranks_decide_alike(
    ranks: RankPool, tmp_path: Path, kind: str, topology: tuple[int, int, int], chosen: tuple[str, str]
) -> None:
    said = ranks.run(
        settled_history, topology[0] * topology[1], manifest(kind, *topology, homophily=0.3), str(tmp_path)
    )
    assert set(said) == {chosen}
