"""The numbers of a job: they always add up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnpipe_api.load import InvalidJob, parse_job
from gnnpipe_api.plan import (
    Plan,
    better_cut,
    cut_layers,
    make_plan,
    most_ranks,
    slowest_stage,
    with_numbers,
)

Count = int | Literal["auto"]
counts = st.one_of(st.integers(1, 40), st.just("auto"))


@given(layers=st.integers(1, 130), stages=counts, ways=counts, chunks=st.one_of(st.none(), counts))
def test_any_valid_job_has_a_plan_that_adds_up(
    layers: int, stages: Count, ways: Count, chunks: Count | None
) -> None:
    manifest = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "any"},
        "spec": {
            "graph": {"source": "synthetic"},
            "model": {"kind": "gcn", "layers": layers},
            "parallelism": {"stages": stages, "ways": ways, "chunks": chunks},
        },
    }
    cannot_run = (isinstance(stages, int) and stages > layers) or (
        isinstance(chunks, int) and isinstance(ways, int) and chunks % ways != 0
    )
    if cannot_run:
        with pytest.raises(InvalidJob):
            parse_job(manifest)
        return
    plan = make_plan(parse_job(manifest))
    assert sum(plan.layers_per_stage) == layers
    assert len(plan.layers_per_stage) == plan.stages
    assert min(plan.layers_per_stage) >= 1
    assert max(plan.layers_per_stage) - min(plan.layers_per_stage) <= 1
    assert plan.chunks % plan.ways == 0
    assert plan.ranks == plan.stages * plan.ways
    assert stages in ("auto", plan.stages)
    assert ways in ("auto", plan.ways)
    assert chunks in (None, "auto", plan.chunks)


@given(costs=st.lists(st.floats(0.01, 100), min_size=1, max_size=60), stages=st.integers(1, 60))
def test_layers_of_any_cost_leave_no_stage_empty(costs: list[float], stages: int) -> None:
    if stages > len(costs):
        with pytest.raises(ValueError, match="need at least"):
            cut_layers(costs, stages)
        return
    cut = cut_layers(costs, stages)
    assert len(cut) == stages
    assert sum(cut) == len(costs)
    assert min(cut) >= 1


@given(costs=st.lists(st.floats(0.1, 10), min_size=1, max_size=9), stages=st.integers(1, 4))
def test_no_other_cut_has_a_quicker_slowest_stage(costs: list[float], stages: int) -> None:
    if stages > len(costs):
        return
    inner = itertools.combinations(range(1, len(costs)), stages - 1)
    every = [tuple(b - a for a, b in itertools.pairwise((0, *ends, len(costs)))) for ends in inner]
    best = min(slowest_stage(cut, costs) for cut in every)
    assert slowest_stage(cut_layers(costs, stages), costs) == pytest.approx(best)


def test_layers_of_nearly_the_same_cost_are_cut_evenly() -> None:
    assert better_cut((2, 2), [1.0, 1.1, 1.0, 0.9]) == (2, 2)
    assert better_cut((2, 2), [3.0, 1.0, 1.0, 1.0]) == (1, 3)


def test_a_costly_layer_gets_a_stage_to_itself() -> None:
    assert cut_layers([10, 1, 1, 1, 1, 1], 2) == (1, 5)
    assert cut_layers([1, 1, 1, 1, 1, 10], 2) == (5, 1)


@pytest.mark.parametrize(
    ("stages", "ways", "chunks"), [(1, 1, 1), (1, 4, 4), (2, 1, 8), (4, 1, 16), (2, 2, 16), (4, 2, 32)]
)
def test_chunks_left_out_are_four_per_rank_and_one_per_way_in_a_single_stage(
    stages: int, ways: int, chunks: int, manifest_with: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    job = parse_job(manifest_with({"spec.parallelism": {"stages": stages, "ways": ways}}))
    assert make_plan(job).chunks == chunks


@pytest.mark.parametrize(
    ("parallelism", "most"),
    [
        ({"stages": "auto"}, 4),
        ({"stages": "auto", "ways": 2}, 4),
        ({"stages": "auto", "ways": 8}, 8),
        ({"stages": "auto", "ways": "auto", "maxRanks": 16}, 16),
        ({"stages": "auto", "maxRanks": 1}, 1),
    ],
)
def test_auto_takes_what_the_manifest_allows_and_four_ranks_where_it_says_nothing(
    parallelism: dict[str, Any], most: int, manifest_with: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    job = parse_job(manifest_with({"spec.parallelism": parallelism}))
    assert most_ranks(job.spec.parallelism) == most


def test_the_guess_without_a_look_at_the_graph_keeps_to_the_limit_too(
    manifest_with: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    job = parse_job(manifest_with({"spec.parallelism": {"stages": "auto", "maxRanks": 1}}))
    assert make_plan(job).ranks == 1


def test_a_planners_numbers_take_the_place_of_auto_and_of_nothing_else(
    manifest_with: Callable[[dict[str, Any]], dict[str, Any]],
) -> None:
    job = parse_job(manifest_with({"spec.parallelism": {"stages": "auto", "ways": 2, "wire": "bf16"}}))
    settled = with_numbers(job, stages=3, ways=2, chunks=12)
    cut = settled.spec.parallelism
    assert (cut.stages, cut.ways, cut.chunks, cut.wire, cut.has_auto) == (3, 2, 12, "bf16", False)
    with pytest.raises(ValueError, match="ways 1 were planned, but the manifest says 2"):
        with_numbers(job, stages=3, ways=1, chunks=12)
    with pytest.raises(InvalidJob, match="cannot share 13 chunks evenly"):
        with_numbers(job, stages=3, ways=2, chunks=13)


def test_the_plan_reads_as_in_result_json() -> None:
    plan = Plan(stages=2, ways=1, chunks=8, layers_per_stage=(3, 2))
    assert plan.as_dict() == {"stages": 2, "ways": 1, "chunks": 8, "layersPerStage": [3, 2]}
    assert [plan.first_layer(stage) for stage in range(2)] == [0, 3]
