"""Public data sets by name, through the loaders of torch-geometric and ogb: planetoid, ogb, pyg.

The raw files are looked for under `root` and downloaded where they are missing and there is a network.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gnnpipe_trainer.graph.arrays import Array, graph_from_arrays
from gnnpipe_trainer.graph.data import UNLABELLED, BadGraph, GraphData
from gnnpipe_trainer.graph.download import LOCK, explained, one_at_a_time, unattended
from gnnpipe_trainer.graph.synthetic import split_masks

PLANETOID_NAMES = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
TRAIN_SHARE, VAL_SHARE = 0.6, 0.2  # of data sets that come without a split


def named_graph(source: str, name: str, root: Path, *, split: int, directed: bool) -> GraphData:
    """`name` is Cora (planetoid), ogbn-arxiv (ogb), or Amazon/Photo for Amazon(root, "Photo") (pyg)."""
    label = f"{source} data set {name}"
    with one_at_a_time(root), unattended():
        try:
            dataset = _OPEN[source](label, name, root)
            arrays = _arrays(label, dataset)
        except BadGraph:
            raise
        except OSError as error:
            raise BadGraph(
                f"{label} cannot be prepared in spec.graph.root {root} ({error}); the folder must be writable "
                "until its processed files are there"
            ) from error
    if "train_mask" not in arrays:  # no split of its own: spec.graph.split chooses a random one
        masks = split_masks(np.random.default_rng(split), arrays["x"].shape[0], TRAIN_SHARE, VAL_SHARE)
        arrays |= zip(("train_mask", "val_mask", "test_mask"), masks, strict=True)
        split = 0
    return graph_from_arrays(label, arrays, split=split, directed=directed)


def raw_files_digest(source: str, name: str, root: Path) -> str | None:
    """Changes when the raw files do; None while there are none. Waits for a download under way."""
    with one_at_a_time(root):
        digest, found = hashlib.sha256(), False
        for file in sorted(root.glob(f"{_folder(source, name)}/**/*")):
            place = file.relative_to(root)
            if file.is_file() and not {"processed", LOCK} & set(place.parts):
                digest.update(f"{place} {file.stat().st_size} {file.stat().st_mtime_ns}\n".encode())
                found = True
    return digest.hexdigest() if found else None


def _folder(source: str, name: str) -> str:
    """Pattern of the folder in `root` that the loader uses; torch-geometric's depend on the class."""
    if source == "planetoid":
        return _planetoid_name(name)
    return name.replace("-", "_") + "*" if source == "ogb" else "*"


def _planetoid_name(name: str) -> str:
    if name.lower() not in PLANETOID_NAMES:
        raise BadGraph(
            f"spec.graph.name is {name}, but planetoid has {', '.join(PLANETOID_NAMES.values())}; "
            "take one of those, or source pyg for others"
        )
    return PLANETOID_NAMES[name.lower()]


def _open_planetoid(label: str, name: str, root: Path) -> Any:
    from torch_geometric.datasets import Planetoid

    return explained(Planetoid, label)(str(root), _planetoid_name(name))


def _open_ogb(label: str, name: str, root: Path) -> Any:
    import torch
    from ogb.nodeproppred import PygNodePropPredDataset, dataset_pyg
    from torch_geometric.data.data import Data, DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # Naming a data set in the manifest is consent to its download; a pod has nobody to ask.
    dataset_pyg.decide_download = lambda url: True
    # ogb 1.3 writes these with torch.save, and torch 2.6 and newer refuses to load them unasked.
    torch.serialization.add_safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage])
    try:
        return explained(PygNodePropPredDataset, label)(name, str(root))
    except BadGraph:
        raise
    except ValueError as error:
        raise BadGraph(f"spec.graph.name is {name}; {' '.join(str(error).split())}") from error


def _open_pyg(label: str, name: str, root: Path) -> Any:
    from torch_geometric import datasets

    kind, *arguments = name.split("/")
    dataset_class = getattr(datasets, kind, None)
    if not isinstance(dataset_class, type):
        raise BadGraph(
            f"spec.graph.name is {name}, but torch_geometric.datasets has no {kind}; "
            'write Class or Class/argument, for example "Amazon/Photo"'
        )
    if "root" not in inspect.signature(dataset_class).parameters:
        raise BadGraph(
            f"spec.graph.name is {name}, but torch_geometric.datasets.{kind} is not read from a folder; "
            "save the graph as an .npz file (source npz)"
        )
    try:
        return explained(dataset_class, label)(str(root), *arguments)
    except BadGraph:
        raise
    except (TypeError, ValueError, KeyError, AssertionError) as error:
        raise BadGraph(
            f"spec.graph.name is {name}, but torch_geometric.datasets.{kind} does not take that "
            f"({str(error) or 'no such name'}); write Class/argument as its documentation names them"
        ) from error


_OPEN: dict[str, Callable[[str, str, Path], Any]] = {
    "planetoid": _open_planetoid,
    "ogb": _open_ogb,
    "pyg": _open_pyg,
}


def _arrays(label: str, dataset: Any) -> dict[str, Array]:
    """The one graph of a data set, by the key names of graph_from_arrays."""
    if len(dataset) != 1:
        raise BadGraph(
            f"{label} holds {len(dataset)} graphs, but a job trains on one; join them in an .npz file"
        )
    data = dataset[0]
    for key, what in (("x", "vertex features"), ("y", "labels"), ("edge_index", "edges of a single kind")):
        if getattr(data, key, None) is None:
            raise BadGraph(f"{label} has no {what}; add them and save the graph as an .npz file (source npz)")
    arrays = {key: _numpy(data[key]) for key in ("x", "y", "edge_index")}
    if arrays["y"].size == arrays["x"].shape[0]:  # one class each: ogb has them as [V, 1], NaN where unknown
        arrays["y"] = np.nan_to_num(arrays["y"].reshape(-1), nan=UNLABELLED)
        arrays["num_classes"] = np.array(dataset.num_classes)
    return arrays | _masks(dataset, data)


def _masks(dataset: Any, data: Any) -> dict[str, Array]:
    if hasattr(dataset, "get_idx_split"):  # ogb
        members = dataset.get_idx_split()
        masks = {
            key: np.zeros(data.num_nodes, dtype=np.bool_) for key in ("train_mask", "val_mask", "test_mask")
        }
        for mask, part in zip(masks.values(), ("train", "valid", "test"), strict=True):
            mask[_numpy(members[part])] = True
        return masks
    keys = ("train_mask", "val_mask", "test_mask")
    return {key: _numpy(data[key]) for key in keys} if all(key in data for key in keys) else {}


def _numpy(tensor: Any) -> Array:
    dense: Array = (tensor.to_dense() if hasattr(tensor, "to_dense") else tensor).numpy()
    return dense
