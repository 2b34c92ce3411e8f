"""npz files: every key name of the design, and one clear sentence for every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph import BadGraph, GraphData, load_graph
from gnnpipe_trainer.graph.sources import fingerprint

WriteNpz = Callable[..., Path]
PUBLIC_FILES = Path(__file__).parents[4] / "shared" / "data"


def load(path: Path, **fields: Any) -> GraphData:
    return load_graph(GraphSpec(source="npz", path=str(path), **fields), Path("."))


def test_the_names_of_torch_geometric_load(write_npz: WriteNpz, graph_arrays: dict[str, Any]) -> None:
    graph = load(write_npz())
    np.testing.assert_array_equal(graph.features, graph_arrays["x"])
    np.testing.assert_array_equal(graph.labels, graph_arrays["y"])
    np.testing.assert_array_equal(graph.edge_index, graph_arrays["edge_index"])
    np.testing.assert_array_equal(graph.test_mask, graph_arrays["test_mask"])
    assert (graph.num_classes, graph.directed, graph.multilabel) == (2, False, False)


def test_the_names_of_the_heterophilous_graphs_load(
    write_npz: WriteNpz, graph_arrays: dict[str, Any]
) -> None:
    masks = {part: graph_arrays[f"{part}_mask"] for part in ("train", "val", "test")}
    path = write_npz(
        **dict.fromkeys(graph_arrays),
        node_features=graph_arrays["x"].astype(np.float64),
        node_labels=graph_arrays["y"].astype(np.int32),
        edges=graph_arrays["edge_index"].T.astype(np.int32),
        train_masks=np.stack((masks["train"], masks["val"])),
        val_masks=np.stack((masks["val"], masks["test"])),
        test_masks=np.stack((masks["test"], masks["train"])).astype(np.uint8),
    )
    graph = load(path, split=1)
    np.testing.assert_array_equal(graph.train_mask, masks["val"])
    np.testing.assert_array_equal(graph.test_mask, masks["train"])
    np.testing.assert_array_equal(graph.edge_index, graph_arrays["edge_index"])
    assert graph.features.dtype == np.float32


def test_masks_may_have_one_column_per_split(write_npz: WriteNpz, graph_arrays: dict[str, Any]) -> None:
    two = {
        f"{part}_mask": np.stack((graph_arrays[f"{part}_mask"],) * 2, axis=1)
        for part in ("train", "val", "test")
    }
    np.testing.assert_array_equal(load(write_npz(**two), split=1).val_mask, graph_arrays["val_mask"])


def test_a_matrix_of_labels_is_multi_label(write_npz: WriteNpz) -> None:
    graph = load(write_npz(y=np.eye(6, 4, dtype=np.int64)))
    assert graph.multilabel
    assert graph.num_classes == 4
    assert graph.labels.dtype == np.float32


def test_edges_are_one_way_only_when_the_manifest_says_so(write_npz: WriteNpz) -> None:
    assert load(write_npz(), directed=True).directed


def test_a_relative_path_starts_at_the_manifest(write_npz: WriteNpz) -> None:
    path = write_npz()
    assert load_graph(GraphSpec(source="npz", path=path.name), path.parent).num_vertices == 6


def test_vertices_without_a_class_are_welcome_outside_the_masks(write_npz: WriteNpz) -> None:
    lonely = np.arange(6) != 0
    labels = np.array([-1, 1, 0, 1, 0, 1])
    assert load(write_npz(y=labels, train_mask=lonely & (np.arange(6) < 2))).num_classes == 2
    with pytest.raises(BadGraph, match="label -1 of vertex 0 is not one of the classes 0 to 1"):
        load(write_npz(y=labels))


FIVE = np.ones(5, dtype=np.bool_)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": None}, r"graph\.npz has no array x or node_features; it holds edge_index, test_mask"),
        (
            {"x": np.zeros(6)},
            r"x is float64 of shape \[6\], but must be numbers of shape \[vertices, features\]",
        ),
        ({"x": np.full((6, 2), "a")}, r"x is <U1 of shape \[6, 2\]"),
        ({"x": np.array([[0, 1]] * 5 + [[0, np.nan]])}, "the first is nan at vertex 5, feature 1; replace"),
        (
            {"x": np.array([[1e300]] * 6)},
            "features of 6 vertices are not finite, the first is inf at vertex 0",
        ),
        ({"x": np.zeros((6, 0))}, "at least one vertex with one feature"),
        ({"y": np.zeros(5, np.int64)}, r"labels have shape \[5\], but there are 6 vertices"),
        ({"y": np.array([0, 1, 0, 1, 0, 9])}, "label 9 of vertex 5 is out of range: y names only 3 classes"),
        ({"y": np.array([0, 1, 0, -3, 0, 1])}, "label -3 of vertex 3 is not one of the classes 0 to 1"),
        ({"y": np.arange(6), "num_classes": 4}, "label 4 of vertex 4 is not one of the classes 0 to 3"),
        ({"y": np.array([0.5] * 6)}, "y holds fractions"),
        ({"y": np.array([[0, 2]] * 6)}, "multi-label row of vertex 0 holds other values than 0 and 1"),
        ({"edge_index": np.array([[0, 1], [1, 6]])}, "edge 1 goes from 1 to 6, but vertices are 0 to 5"),
        ({"edge_index": np.array([[0, -1], [1, 2]])}, "edge 1 goes from -1 to 2"),
        (
            {"edge_index": np.zeros((9, 2), int)},
            r"edge_index is int64 of shape \[9, 2\].* of shape \[2, edges\]",
        ),
        ({"edge_index": np.zeros((2, 3))}, "must be whole numbers"),
        ({"train_mask": FIVE}, r"train_mask has shape \[5\], but there are 6 vertices; give it shape \[6\]"),
        ({"val_mask": np.array([FIVE])}, r"val_mask has shape \[1, 5\], but there are 6 vertices"),
        ({"test_mask": None}, "no array test_mask or test_masks"),
        ({"test_mask": np.arange(6)}, "test_mask must hold only true and false"),
        (
            {"train_mask": np.zeros(6, np.bool_)},
            "train_mask holds no vertex, so there is nothing to learn from",
        ),
        ({"x": np.array([[None]] * 6)}, "holds an array of Python objects"),
    ],
)
def test_wrong_data_gets_one_sentence(changes: dict[str, Any], sentence: str, write_npz: WriteNpz) -> None:
    with pytest.raises(BadGraph, match=sentence) as caught:
        load(write_npz(**changes))
    assert "graph.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_split_that_is_not_there_names_those_that_are(
    write_npz: WriteNpz, graph_arrays: dict[str, Any]
) -> None:
    with pytest.raises(BadGraph, match=r"spec\.graph\.split is 2, but graph\.npz holds 1 splits"):
        load(write_npz(train_mask=graph_arrays["train_mask"][None]), split=2)
    with pytest.raises(BadGraph, match=r"spec\.graph\.split is 2, but graph\.npz holds one split only"):
        load(write_npz(), split=2)


def test_a_missing_file_is_named_in_full(tmp_path: Path) -> None:
    with pytest.raises(BadGraph, match=rf"no file {tmp_path}/absent\.npz; a relative path starts at"):
        load_graph(GraphSpec(source="npz", path="absent.npz"), tmp_path)


def test_files_that_are_no_npz_are_refused(tmp_path: Path, write_npz: WriteNpz) -> None:
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(BadGraph, match=r"text\.npz is not an \.npz file"):
        load(tmp_path / "text.npz")
    whole = write_npz().read_bytes()
    (tmp_path / "damaged.npz").write_bytes(whole[:200] + b"?" * 20 + whole[220:])
    with pytest.raises(BadGraph, match=r"damaged\.npz is damaged"):
        load(tmp_path / "damaged.npz")


def test_training_on_test_vertices_is_warned_about(
    write_npz: WriteNpz, graph_arrays: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    load(write_npz(test_mask=graph_arrays["train_mask"]))
    assert "2 vertices are in train_mask and in test_mask" in caplog.text


@pytest.mark.skipif(not PUBLIC_FILES.is_dir(), reason="the public graphs are not beside this checkout")
@pytest.mark.parametrize(
    ("file", "vertices", "edges", "classes", "training"),
    [
        ("cora.npz", 2708, 10556, 7, 140),
        ("citeseer.npz", 3327, 9104, 6, 120),
        ("squirrel.npz", 5201, 198353, 5, 2496),
    ],
)
def test_public_files_load_unchanged(
    file: str, vertices: int, edges: int, classes: int, training: int
) -> None:
    graph = load(PUBLIC_FILES / file)
    assert (graph.num_vertices, graph.edge_index.shape[1], graph.num_classes) == (vertices, edges, classes)
    assert graph.train_mask.sum() == training


def test_normalised_features_sum_to_one_and_make_another_graph(write_npz: Callable[..., Path]) -> None:
    path = write_npz(x=np.array([[2, 2, 0]] * 5 + [[0, 0, 0]], dtype=np.float32))
    plain = GraphSpec(source="npz", path=str(path))
    normal = plain.model_copy(update={"normalize_features": True})
    features = load_graph(normal, path.parent).features
    assert features.sum(axis=1).tolist() == [1, 1, 1, 1, 1, 0]
    assert load_graph(plain, path.parent).features.max() == 2
    assert fingerprint(plain, path.parent) != fingerprint(normal, path.parent)
