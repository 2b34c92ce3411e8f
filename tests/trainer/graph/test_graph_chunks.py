"""Chunks of any graph: nothing lost, nothing invented, every chunk a range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnnpipe_trainer.graph import BadGraph, ChunkedGraph, GraphData
from gnnpipe_trainer.graph.chunks import cut
from gnnpipe_trainer.graph.partition import VERTEX_WORK
from gnnpipe_trainer.graph.synthetic import synthetic_graph

MakeGraph = Callable[..., GraphData]
Edges = list[tuple[int, int]]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, Edges, bool, int, int]:
    """Vertices, edges (loops, duplicates, lonely vertices and islands welcome), directed, ways, chunks."""
    vertices = draw(st.integers(1, 40))
    vertex = st.integers(0, vertices - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex), max_size=4 * vertices))
    chunks = draw(st.integers(1, vertices))
    ways = draw(st.sampled_from([way for way in range(1, chunks + 1) if chunks % way == 0]))
    return vertices, edges, draw(st.booleans()), ways, chunks


def wanted_edges(edges: Edges, directed: bool) -> set[tuple[int, int]]:
    kept = {(u, v) for u, v in edges if u != v}
    return kept if directed else kept | {(v, u) for u, v in kept}


def edges_in_original_numbers(graph: ChunkedGraph) -> list[tuple[int, int]]:
    target = np.repeat(graph.permutation, np.diff(graph.indptr))
    source = graph.permutation[graph.indices]
    return list(zip(source.tolist(), target.tolist(), strict=True))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cuts())
def test_any_graph_survives_any_cut(case: tuple[int, Edges, bool, int, int], make_graph: MakeGraph) -> None:
    vertices, edges, directed, ways, chunks = case
    data = make_graph(vertices, edges, directed=directed)
    graph = cut(data, ways, chunks)

    # renumbering is a bijection, chunks are ranges that cover it, none empty, original order inside
    assert sorted(graph.permutation.tolist()) == list(range(vertices))
    assert graph.num_chunks == chunks
    assert graph.bounds[0] == 0
    assert graph.bounds[-1] == vertices
    assert (np.diff(graph.bounds) > 0).all()
    for c in range(chunks):
        assert (np.diff(graph.permutation[graph.chunk(c)]) > 0).all()
        assert (graph.chunk_of(np.arange(vertices)[graph.chunk(c)]) == c).all()

    # edges are the same set, each once, rows ascending
    found = edges_in_original_numbers(graph)
    assert len(found) == len(set(found)) == graph.num_edges
    assert set(found) == wanted_edges(edges, directed)
    for v in range(vertices):
        assert (np.diff(graph.indices[graph.indptr[v] : graph.indptr[v + 1]]) > 0).all()

    # what belongs to a vertex went with it
    np.testing.assert_array_equal(graph.features, data.features[graph.permutation])
    np.testing.assert_array_equal(graph.labels, data.labels[graph.permutation])
    for mask in ("train_mask", "val_mask", "test_mask"):
        np.testing.assert_array_equal(getattr(graph, mask), getattr(data, mask)[graph.permutation])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cuts())
def test_halo_degrees_out_edges_and_counts_are_exact(
    case: tuple[int, Edges, bool, int, int], make_graph: MakeGraph
) -> None:
    vertices, edges, directed, ways, chunks = case
    graph = cut(make_graph(vertices, edges, directed=directed), ways, chunks)
    incoming = {
        (int(u), v) for v in range(vertices) for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]
    }
    outgoing = {
        (u, int(v))
        for u in range(vertices)
        for v in graph.out_indices[graph.out_indptr[u] : graph.out_indptr[u + 1]]
    }
    assert outgoing == incoming
    assert graph.in_degree.tolist() == [sum(v == w for _, w in incoming) for v in range(vertices)]

    def outside(rows: slice) -> list[int]:
        inside = range(rows.start, rows.stop)
        return sorted({u for u, v in incoming if v in inside and u not in inside})

    for c in range(chunks):
        assert graph.halo(c).tolist() == outside(graph.chunk(c))
    assert graph.mirrors() == sum(len(outside(graph.way(w))) for w in range(ways))
    assert graph.mirrors(chunks) == sum(graph.halo(c).size for c in range(chunks))
    chunk_of = graph.chunk_of(np.arange(vertices))
    assert graph.cut_edges() == sum(bool(chunk_of[u] != chunk_of[v]) for u, v in incoming)


def test_the_same_graph_gives_the_same_chunks() -> None:
    first, second = (cut(communities(seed=3), 2, 8) for _ in range(2))
    assert first.content_hash == second.content_hash
    np.testing.assert_array_equal(first.permutation, second.permutation)
    assert cut(communities(seed=4), 2, 8).content_hash != first.content_hash


def test_chunks_have_about_equal_work() -> None:
    graph = cut(communities(), 2, 8)
    work = VERTEX_WORK * np.diff(graph.bounds) + np.diff(graph.indptr[graph.bounds])
    assert work.max() < 1.08 * work.mean()


def test_metis_finds_communities_and_keeps_them_in_one_way() -> None:
    graph = cut(communities(), 2, 8)
    scattered = cut(communities(homophily=0.125), 2, 8)  # 8 classes: no community at all
    assert graph.cut_edges() < 0.35 * graph.num_edges
    assert scattered.cut_edges() > 0.6 * scattered.num_edges
    assert graph.mirrors() < scattered.mirrors()


def test_an_undirected_graph_stores_its_edges_once() -> None:
    graph = cut(communities(), 1, 4)
    assert graph.out_indices is graph.indices
    assert graph.indices.dtype == np.int32


def test_half_of_the_edges_between_chunks_are_stale() -> None:
    graph = cut(communities(), 1, 8)
    assert graph.stale_share() == pytest.approx(graph.cut_edges() / graph.num_edges / 2)
    assert cut(communities(), 1, 1).stale_share() == 0


def test_chunks_that_run_together_in_two_ways_are_fresh_to_each_other(make_graph: MakeGraph) -> None:
    two_ways_at_once = cut(make_graph(2, [(0, 1)]), 2, 2)
    assert two_ways_at_once.cut_edges() == 2
    assert two_ways_at_once.stale_share() == 0


def test_more_chunks_than_vertices_is_refused_with_the_way_out(make_graph: MakeGraph) -> None:
    with pytest.raises(BadGraph, match=r"chunks is 6, but test graph has only 5 vertices; choose at most 5"):
        cut(make_graph(5, []), 1, 6)


def test_ways_must_divide_chunks(make_graph: MakeGraph) -> None:
    with pytest.raises(BadGraph, match="ways must divide chunks"):
        cut(make_graph(9, []), 2, 5)


def communities(seed: int = 0, homophily: float = 0.8) -> GraphData:
    return synthetic_graph(
        vertices=1600,
        average_degree=12,
        classes=8,
        features=4,
        homophily=homophily,
        power_law=2.5,
        feature_noise=1.0,
        train_share=0.5,
        val_share=0.2,
        seed=seed,
    )
