"""`history.gradients: auto`: earlier gradients only where much is stale; which, is a matter of the model's blocks.
`history.correction: auto` and `training.averaging.mode: auto` likewise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_pool import RankPool
from rank_tasks import settled_choices

from gnnpipe_api.job import Averaging, HistorySpec, ParallelismSpec
from gnnpipe_api.load import parse_job
from gnnpipe_trainer.staleness.carry import (
    LEAST_STALE_EDGES,
    LEAST_TO_CORRECT,
    MOST_LAYERS,
    Traits,
    averaged,
    carried,
    correction,
    with_averaging,
)

ABOVE, BELOW = LEAST_STALE_EDGES, LEAST_STALE_EDGES - 0.01
SHALLOW = Traits(layers=MOST_LAYERS, bypass=False, summed=True)
DEEP, BYPASSED = SHALLOW._replace(layers=MOST_LAYERS + 1), Traits(layers=32, bypass=True, summed=True)


@pytest.mark.parametrize(
    ("asked", "model", "stale_edges", "chosen"),
    [
        ({}, BYPASSED, ABOVE, "last"),
        ({}, BYPASSED._replace(summed=False), ABOVE, "last"),
        ({}, BYPASSED, BELOW, "drop"),
        ({}, SHALLOW, ABOVE, "average"),
        ({}, SHALLOW, BELOW, "drop"),
        ({}, SHALLOW._replace(summed=False), ABOVE, "drop"),  # gat was not tried
        ({}, DEEP, ABOVE, "drop"),  # which averaged gradients can keep at chance
        ({"freshGradientFactor": 2.0}, BYPASSED, ABOVE, "drop"),  # these make up for the cut already
        ({"freshGradientFactor": 2.0}, SHALLOW, ABOVE, "drop"),
        ({"history": {"gradients": "drop"}}, BYPASSED, ABOVE, "drop"),
        ({"history": {"gradients": "last"}}, DEEP, BELOW, "last"),
        ({"history": {"gradients": "average"}}, BYPASSED, BELOW, "average"),
    ],
)
def test_auto_takes_earlier_gradients_only_where_they_help(
    asked: dict[str, Any], model: Traits, stale_edges: float, chosen: str
) -> None:
    assert carried(ParallelismSpec.model_validate(asked), model, stale_edges) == chosen


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


@pytest.mark.parametrize(
    ("asked", "stale_edges", "chosen"),
    [
        ({}, ABOVE, "tail"),
        ({}, BELOW, "none"),
        ({"mode": "none"}, ABOVE, "none"),
        ({"mode": "ema"}, ABOVE, "ema"),
        ({"mode": "tail"}, 0.0, "tail"),
    ],
)
def test_auto_averages_weights_where_the_course_of_training_is_rough(
    asked: dict[str, Any], stale_edges: float, chosen: str
) -> None:
    assert averaged(Averaging.model_validate(asked), stale_edges) == chosen


def test_a_settled_job_is_one_that_a_person_could_have_written() -> None:
    job = parse_job(manifest("gcn", 2, 1, 4, 0.3))
    for mode in ("tail", "none"):
        assert parse_job(with_averaging(job, mode).manifest()).spec.training.averaging.mode == mode


def manifest(
    kind: str, stages: int, ways: int, chunks: int, homophily: float, layers: int = 4, **training: Any
) -> dict[str, Any]:
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
            "model": {"kind": kind, "layers": layers, "hidden": 8},
            "training": {"epochs": 2, "device": "cpu", **training},
            "parallelism": {"stages": stages, "ways": ways, "chunks": chunks},
        },
    }


@pytest.mark.parametrize(
    ("kind", "layers", "topology", "chosen"),
    [
        ("gcnii", 4, (2, 2, 16), ("last", "mean", "tail")),
        ("sage", 4, (2, 1, 16), ("last", "none", "tail")),
        ("gcn", 4, (2, 2, 16), ("average", "none", "tail")),
        ("gcn", 5, (2, 1, 16), ("drop", "none", "tail")),
        ("gat", 4, (2, 1, 16), ("drop", "none", "tail")),
        ("gcnii", 4, (2, 1, 2), ("drop", "mean", "none")),  # in two halves a quarter of the edges is stale
        ("gcn", 4, (2, 1, 2), ("drop", "none", "none")),
        ("gcnii", 4, (1, 2, 2), ("drop", "none", "none")),  # nothing is
    ],
)
def test_all_ranks_decide_alike(
    ranks: RankPool,
    tmp_path: Path,
    kind: str,
    layers: int,
    topology: tuple[int, int, int],
    chosen: tuple[str, str, str],
) -> None:
    job = manifest(kind, *topology, homophily=0.3, layers=layers)
    said = ranks.run(settled_choices, topology[0] * topology[1], job, str(tmp_path))
    assert set(said) == {chosen}


@pytest.mark.parametrize(("topology", "mode"), [((2, 1, 16), "tail"), ((1, 1, 1), "none")])
def test_averaging_is_decided_also_where_all_of_history_is_said(
    ranks: RankPool, tmp_path: Path, topology: tuple[int, int, int], mode: str
) -> None:
    job = manifest("gcn", *topology, homophily=0.3)
    job["spec"]["parallelism"]["history"] = {"gradients": "average", "correction": "none"}
    said = ranks.run(settled_choices, topology[0] * topology[1], job, str(tmp_path))
    assert set(said) == {("average", "none", mode)}
