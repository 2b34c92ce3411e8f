"""planetoid, ogb and pyg: the real loaders, on tiny data sets written in their raw formats."""

from __future__ import annotations

import gzip
import pickle
import socket
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph import BadGraph, chunked_graph, load_graph


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name resolves, as in a pod without a way out; also on a machine that has a network."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write_planetoid(root: Path, *, vertices: int = 620, training: int = 30, testing: int = 20) -> Any:
    """ind.cora.* with a ring of vertices; returns the features [V, 5] in vertex order."""
    raw = root / "Cora" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    features = (rng.random((vertices, 5)) < 0.5).astype(np.float32)
    classes = np.eye(3, dtype=np.int32)[np.arange(vertices) % 3]
    known = vertices - testing
    parts = {
        "x": sp.csr_matrix(features[:training]),
        "tx": sp.csr_matrix(features[known:]),
        "allx": sp.csr_matrix(features[:known]),
        "y": classes[:training],
        "ty": classes[known:],
        "ally": classes[:known],
        "graph": defaultdict(list, {v: [(v + 1) % vertices, (v - 1) % vertices] for v in range(vertices)}),
    }
    for part, value in parts.items():
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(value))
    (raw / "ind.cora.test.index").write_text("".join(f"{v}\n" for v in range(known, vertices)))
    return features


def write_ogbn_arxiv(root: Path, vertices: int = 12) -> None:
    """A path of vertices in the layout of arxiv.zip."""
    folder = root / "ogbn_arxiv"
    one_column = np.arange(vertices)[:, None]
    tables = {
        "raw/edge": np.stack((np.arange(vertices - 1), np.arange(1, vertices)), axis=1),
        "raw/num-node-list": np.array([[vertices]]),
        "raw/num-edge-list": np.array([[vertices - 1]]),
        "raw/node-feat": one_column * 0.5,
        "raw/node_year": one_column + 2000,
        "raw/node-label": one_column % 40,
        "split/time/train": one_column[:6],
        "split/time/valid": one_column[6:9],
        "split/time/test": one_column[9:],
    }
    for name, table in tables.items():
        file = folder / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file, "wt") as out:
            np.savetxt(out, table, delimiter=",", fmt="%g")


def write_amazon_photo(root: Path, vertices: int = 10) -> None:
    raw = root / "Photo" / "raw"
    raw.mkdir(parents=True)
    ring = sp.csr_matrix((np.ones(vertices), (np.arange(vertices), (np.arange(vertices) + 1) % vertices)))
    features = sp.csr_matrix(np.eye(vertices, 4, dtype=np.float32))
    arrays = {
        f"{prefix}_{field}": getattr(matrix, field)
        for prefix, matrix in (("adj", ring), ("attr", features))
        for field in ("data", "indices", "indptr", "shape")
    }
    np.savez(raw / "amazon_electronics_photo.npz", labels=np.arange(vertices) % 2, **arrays)


def test_planetoid_is_read_from_its_raw_files(tmp_path: Path) -> None:
    features = write_planetoid(tmp_path)
    graph = load_graph(GraphSpec(source="planetoid", name="cora", root=str(tmp_path)), Path("."))
    np.testing.assert_array_equal(graph.features, features)
    np.testing.assert_array_equal(graph.labels, np.arange(620) % 3)
    assert (graph.train_mask.sum(), graph.val_mask.sum(), graph.test_mask.sum()) == (30, 500, 20)
    assert graph.edge_index.shape == (2, 1240)


def test_ogb_is_read_from_its_raw_files_without_asking(tmp_path: Path) -> None:
    write_ogbn_arxiv(
        tmp_path
    )  # without RELEASE_v1.txt, so that ogb asks whether to update; pytest fails whoever reads stdin
    for _ in ("from raw files", "from processed files"):
        graph = load_graph(GraphSpec(source="ogb", name="ogbn-arxiv", root=str(tmp_path)), Path("."))
        np.testing.assert_array_equal(graph.features[:, 0], np.arange(12) * 0.5)
        np.testing.assert_array_equal(graph.labels, np.arange(12))
        assert np.flatnonzero(graph.val_mask).tolist() == [6, 7, 8]
        assert graph.num_classes == 40


def test_pyg_takes_class_and_argument_and_makes_a_split_where_there_is_none(tmp_path: Path) -> None:
    write_amazon_photo(tmp_path / "photos")
    first, second = (
        load_graph(GraphSpec(source="pyg", name="Amazon/Photo", root="photos", split=split), tmp_path)
        for split in (0, 1)
    )
    assert (first.train_mask.sum(), first.val_mask.sum(), first.test_mask.sum()) == (6, 2, 2)
    assert not np.array_equal(first.train_mask, second.train_mask)


def test_a_named_data_set_is_cached_until_its_files_change(tmp_path: Path) -> None:
    spec = GraphSpec(source="pyg", name="Amazon/Photo", root="data")
    write_amazon_photo(tmp_path / "data")
    cache = tmp_path / "cache"
    for _ in range(2):
        assert chunked_graph(spec, 1, 2, tmp_path, cache).num_vertices == 10
        assert len(list(cache.glob("*/meta.json"))) == 1
    raw = tmp_path / "data" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    raw.write_bytes(raw.read_bytes())
    chunked_graph(spec, 1, 2, tmp_path, cache)
    assert len(list(cache.glob("*/meta.json"))) == 2


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("source", "name", "wanted"),
    [
        ("planetoid", "Cora", "{root}/Cora/raw/ind.cora.x, {root}/Cora/raw/ind.cora.tx"),
        (
            "ogb",
            "ogbn-products",
            "products.zip, unpack it, and put its folder products as {root}/ogbn_products",
        ),
        ("pyg", "Amazon/Photo", "put these files in place: {root}/Photo/raw/amazon_electronics_photo.npz"),
        ("pyg", "Reddit", "{root}/raw/reddit_data.npz, {root}/raw/reddit_graph.npz"),
    ],
)
def test_what_cannot_be_downloaded_names_the_files(
    source: str, name: str, wanted: str, tmp_path: Path
) -> None:
    with pytest.raises(BadGraph) as caught:
        load_graph(
            GraphSpec.model_validate({"source": source, "name": name, "root": str(tmp_path)}), tmp_path
        )
    assert wanted.format(root=tmp_path) in str(caught.value)
    assert [file.name for file in tmp_path.rglob("*")] == [".gnnpipe.lock"]


@pytest.mark.parametrize(
    ("source", "name", "sentence"),
    [
        ("planetoid", "Kora", "name is Kora, but planetoid has Cora, CiteSeer, PubMed"),
        ("ogb", "ogbn-nothing", "name is ogbn-nothing; .*Available datasets.* ogbn-arxiv"),
        ("pyg", "Nothing", "torch_geometric.datasets has no Nothing"),
        ("pyg", "Amazon/Nothing", "Amazon does not take that"),
        ("pyg", "Amazon", "missing 1 required positional argument"),
        ("pyg", "KarateClub", "is not read from a folder"),
    ],
)
def test_wrong_names_get_one_sentence(source: str, name: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadGraph, match=sentence):
        load_graph(
            GraphSpec.model_validate({"source": source, "name": name, "root": str(tmp_path)}), tmp_path
        )


def test_raw_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write_planetoid(tmp_path)
    (tmp_path / "Cora" / "raw" / "ind.cora.x").write_bytes(b"not a pickle")
    with pytest.raises(BadGraph, match=rf"the files in {tmp_path}/Cora/raw cannot be read"):
        load_graph(GraphSpec(source="planetoid", name="Cora", root=str(tmp_path)), Path("."))
