"""The generated graph is what the manifest describes, and is neither trivial nor hopeless."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph import GraphData, load_graph


def generate(**fields: Any) -> GraphData:
    return load_graph(GraphSpec(source="synthetic", **fields), Path("."))


def test_size_degree_homophily_and_split_are_as_asked() -> None:
    graph = generate(vertices=4000, average_degree=15, classes=10, features=7, homophily=0.7)
    assert graph.features.shape == (4000, 7)
    assert 2 * graph.edge_index.shape[1] / 4000 == pytest.approx(15, rel=0.01)
    source, target = graph.labels[graph.edge_index]
    assert (source == target).mean() == pytest.approx(0.7, abs=0.04)
    assert np.bincount(graph.labels).tolist() == [400] * 10
    assert (graph.train_mask.sum(), graph.val_mask.sum(), graph.test_mask.sum()) == (400, 800, 2800)
    assert not (graph.train_mask & graph.test_mask).any()


def test_every_edge_is_there_once_and_none_is_a_loop() -> None:
    low, high = np.sort(generate(vertices=500).edge_index, axis=0)
    assert (low != high).all()
    assert np.unique(low * 500 + high).size == low.size


def test_a_smaller_exponent_gives_more_edges_to_the_hubs() -> None:
    heavy, light = (
        np.sort(np.bincount(generate(vertices=4000, power_law=exponent).edge_index.ravel()))[-200:].sum()
        for exponent in (2.1, 4.0)
    )
    assert heavy > 2 * light


def test_the_seed_decides_everything() -> None:
    first, again, other = (generate(vertices=300, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.edge_index, again.edge_index)
    np.testing.assert_array_equal(first.features, again.features)
    np.testing.assert_array_equal(first.train_mask, again.train_mask)
    assert not np.array_equal(first.features, other.features)


@pytest.mark.parametrize(
    "fields", [{"vertices": 1}, {"vertices": 3}, {"vertices": 30, "average_degree": 1000.0}]
)
def test_tiny_and_impossibly_dense_graphs_are_made_as_far_as_they_go(fields: dict[str, Any]) -> None:
    graph = generate(**fields)
    assert graph.edge_index.shape[1] <= graph.num_vertices * (graph.num_vertices - 1) / 2


def test_features_alone_are_not_enough_and_neighbours_help() -> None:
    graph = generate()
    alone = nearest_centre_accuracy(graph, graph.features)
    neighbours = graph.features.copy()
    for source, target in (graph.edge_index, graph.edge_index[::-1]):
        np.add.at(neighbours, target, graph.features[source])
    degree = np.bincount(graph.edge_index.ravel(), minlength=graph.num_vertices)
    together = nearest_centre_accuracy(graph, neighbours / (degree[:, None] + 1))
    assert 0.15 < alone < 0.5
    assert alone + 0.2 < together < 0.95


def nearest_centre_accuracy(graph: GraphData, features: Any) -> float:
    """Test accuracy of the simplest linear classifier: the nearest mean of the training vertices."""
    centres = np.stack(
        [features[graph.train_mask & (graph.labels == c)].mean(axis=0) for c in range(graph.num_classes)]
    )
    scores = features @ centres.T - (centres**2).sum(axis=1) / 2
    return float((scores.argmax(axis=1) == graph.labels)[graph.test_mask].mean())
