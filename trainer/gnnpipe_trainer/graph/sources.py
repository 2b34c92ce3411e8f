"""`spec.graph` to a checked graph: one entry for every source a manifest can name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnpipe_api.spec_graph import SYNTHETIC_FIELDS, GraphSpec
from gnnpipe_trainer.graph.data import BadGraph, Floats, GraphData, check
from gnnpipe_trainer.graph.named import named_graph, raw_files_digest
from gnnpipe_trainer.graph.npz import npz_graph
from gnnpipe_trainer.graph.synthetic import synthetic_graph


def load_graph(spec: GraphSpec, manifest_folder: Path) -> GraphData:
    """The graph that the manifest names, checked; BadGraph where it cannot be trained on."""
    graph = _load(spec, manifest_folder)
    return replace(graph, features=_sum_to_one(graph.features)) if spec.normalize_features else graph


def _load(spec: GraphSpec, manifest_folder: Path) -> GraphData:
    directed = bool(spec.directed)
    if spec.source == "synthetic":
        return check(synthetic_graph(**spec.model_dump(include=set(SYNTHETIC_FIELDS))))
    if spec.source == "npz":
        return check(npz_graph(_npz_path(spec, manifest_folder), split=spec.split, directed=directed))
    name, root = _name_and_root(spec, manifest_folder)
    return check(named_graph(spec.source, name, root, split=spec.split, directed=directed))


def fingerprint(spec: GraphSpec, manifest_folder: Path) -> str:
    """Changes whenever load_graph would give another graph: the parameters, or the content of the files."""
    identity = spec.model_dump(include={"source"})
    if spec.source == "synthetic":
        identity |= spec.model_dump(include=set(SYNTHETIC_FIELDS))
    else:
        identity |= {"split": spec.split, "directed": bool(spec.directed)}
        identity["content"] = _content(spec, manifest_folder)
    if spec.normalize_features:
        identity["normalizeFeatures"] = True
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _sum_to_one(features: Floats) -> Floats:
    """Each row [F] divided by its sum; a row of sum 0 stays as it is."""
    sums = features.sum(axis=1, keepdims=True)
    sums[sums == 0] = 1
    scaled: Floats = np.divide(features, sums, dtype=np.float32)
    return scaled


def _content(spec: GraphSpec, manifest_folder: Path) -> str:
    """Stands for what is in the graph's files."""
    if spec.source == "npz":
        path = _npz_path(spec, manifest_folder)
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise BadGraph(f"spec.graph.path: {path} cannot be read ({error.strerror})") from error
    name, root = _name_and_root(spec, manifest_folder)
    digest = raw_files_digest(spec.source, name, root)
    if digest is None:
        load_graph(spec, manifest_folder)  # downloads
        digest = raw_files_digest(spec.source, name, root)
    return f"{name} {root.resolve()} {digest}"


def _npz_path(spec: GraphSpec, manifest_folder: Path) -> Path:
    if not spec.path:
        raise BadGraph("spec.graph.path is missing; source npz needs the path of an .npz file")
    path = manifest_folder / Path(spec.path).expanduser()
    if not path.is_file():
        raise BadGraph(
            f"spec.graph.path: there is no file {path}; a relative path starts at the manifest's folder"
        )
    return path


def _name_and_root(spec: GraphSpec, manifest_folder: Path) -> tuple[str, Path]:
    if not spec.name or not spec.root:
        raise BadGraph(
            f"spec.graph: source {spec.source} needs the name of a data set and a root folder for it"
        )
    return spec.name, manifest_folder / Path(spec.root).expanduser()
