"""`spec.graph` to a checked graph: one entry for every source a manifest can name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from gnnpipe_api.spec_graph import SYNTHETIC_FIELDS, GraphSpec
from gnnpipe_trainer.graph.data import BadGraph, GraphData, check
from gnnpipe_trainer.graph.npz import npz_graph
from gnnpipe_trainer.graph.synthetic import synthetic_graph


def load_graph(spec: GraphSpec, manifest_folder: Path) -> GraphData:
    """The graph that the manifest names, checked; BadGraph where it cannot be trained on."""
    directed = bool(spec.directed)
    if spec.source == "synthetic":
        return check(synthetic_graph(**spec.model_dump(include=set(SYNTHETIC_FIELDS))))
    if spec.source == "npz":
        return check(npz_graph(_npz_path(spec, manifest_folder), split=spec.split, directed=directed))
    raise BadGraph(f"spec.graph.source {spec.source} is not there yet")


def fingerprint(spec: GraphSpec, manifest_folder: Path) -> str:
    """Changes whenever load_graph would give another graph: the parameters, or the content of the files."""
    if spec.source == "synthetic":
        identity = spec.model_dump(include={"source", *SYNTHETIC_FIELDS})
    else:
        identity = spec.model_dump(include={"source", "split"}) | {"directed": bool(spec.directed)}
        with _npz_path(spec, manifest_folder).open("rb") as file:
            identity["content"] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _npz_path(spec: GraphSpec, manifest_folder: Path) -> Path:
    if not spec.path:
        raise BadGraph("spec.graph.path is missing; source npz needs the path of an .npz file")
    path = manifest_folder / Path(spec.path).expanduser()
    if not path.is_file():
        raise BadGraph(
            f"spec.graph.path: there is no file {path}; a relative path starts at the manifest's folder"
        )
    return path
