"""The stale share of edges is what one counts by hand."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.staleness.share import StaleShare

WAYS = 2
SLOTS = 3


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> ChunkedGraph:
    folder = tmp_path_factory.mktemp("graph")
    spec = GraphSpec(source="synthetic", vertices=120, average_degree=6)
    return chunked_graph(spec, WAYS, WAYS * SLOTS, folder, folder)


def by_hand(graph: ChunkedGraph, order: list[int], mean: bool) -> float:
    """Edge by edge: stale when the source's slot comes after the reader's."""
    slot = graph.chunk_of(np.arange(graph.num_vertices)) % SLOTS
    degree = np.diff(graph.indptr)
    stale = total = 0.0
    for reader in range(graph.num_vertices):
        for source in graph.indices[graph.indptr[reader] : graph.indptr[reader + 1]]:
            weight = 1 / degree[reader] if mean else 1.0
            total += weight
            stale += weight * (order.index(slot[source]) > order.index(slot[reader]))
    return stale / total


@pytest.mark.parametrize("mean", [True, False])
def test_ways_together_weigh_every_edge_once(graph: ChunkedGraph, mean: bool) -> None:
    shards = [Shard(graph, way, torch.float32, torch.device("cpu")) for way in range(WAYS)]
    shares = [StaleShare(shard, "mean" if mean else None) for shard in shards]
    seen = []
    for order in map(list, permutations(range(SLOTS))):
        stale, total = map(sum, zip(*(share.weigh(order) for share in shares), strict=True))
        assert stale / total == pytest.approx(by_hand(graph, order, mean), rel=1e-5)
        seen.append(stale / total)
    stale, total = map(sum, zip(*(share.expect() for share in shares), strict=True))
    assert stale / total == pytest.approx(np.mean(seen))
    assert (
        len({round(share, 6) for share in seen}) > 1
    ) == mean  # for equal weights both ways, order is nothing
