"""Arrays by the key names of public benchmark files, to a graph: the same rules for files and data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnpipe_trainer.graph.data import BadGraph, Bools, Floats, GraphData, Ints

Array = npt.NDArray[Any]


def graph_from_arrays(name: str, arrays: Mapping[str, Array], *, split: int, directed: bool) -> GraphData:
    """`name` is what error messages call the file or data set."""
    features = _features(name, arrays)
    vertices = features.shape[0]
    labels, num_classes = _labels(name, arrays)
    train_mask, val_mask, test_mask = (
        _mask(name, arrays, part, vertices, split) for part in ("train", "val", "test")
    )
    return GraphData(
        name=name,
        features=features,
        labels=labels,
        edge_index=_edge_index(name, arrays),
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        num_classes=num_classes,
        directed=directed,
    )


def _one_of(name: str, arrays: Mapping[str, Array], *keys: str) -> tuple[str, Array]:
    """The first of `keys` that the file has, with its array."""
    for key in keys:
        if key in arrays:
            return key, arrays[key]
    raise BadGraph(
        f"{name} has no array {' or '.join(keys)}; it holds {', '.join(sorted(arrays)) or 'nothing'}"
    )


def _features(name: str, arrays: Mapping[str, Array]) -> Floats:
    key, values = _one_of(name, arrays, "x", "node_features")
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise BadGraph(
            f"{name}: {key} is {values.dtype} of shape {list(values.shape)}, "
            "but must be numbers of shape [vertices, features]"
        )
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which check() reports
        return np.ascontiguousarray(values, dtype=np.float32)


def _labels(name: str, arrays: Mapping[str, Array]) -> tuple[Array, int]:
    """Labels and the number of classes: the file's `num_classes`, or as many as the labels name."""
    key, values = _one_of(name, arrays, "y", "node_labels")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2) or values.dtype.kind not in "fiub" or values.size == 0:
        raise BadGraph(
            f"{name}: {key} is {values.dtype} of shape {list(values.shape)}, but must be numbers of shape "
            "[vertices] or, for multi-label, [vertices, classes]"
        )
    if values.ndim == 2:
        return values.astype(np.float32), values.shape[1]
    if values.dtype.kind == "f" and not np.equal(values, np.floor(values)).all():
        raise BadGraph(f"{name}: {key} holds fractions or NaN, but a label is the number of a class")
    labels = values.astype(np.int64)
    if "num_classes" in arrays:
        return labels, int(arrays["num_classes"])
    _check_no_gap(name, key, labels)
    return labels, int(labels.max()) + 1


def _check_no_gap(name: str, key: str, labels: Ints) -> None:
    """A stray label such as 999 would otherwise silently become a thousand classes."""
    named = np.unique(labels[labels >= 0])
    if named.size and named[-1] != named.size - 1:
        gap = int(np.flatnonzero(named != np.arange(named.size))[0])
        vertex = int(np.flatnonzero(labels == named[-1])[0])
        raise BadGraph(
            f"{name}: label {int(named[-1])} of vertex {vertex} is out of range: {key} names only "
            f"{named.size} classes and none is class {gap}; number classes from 0 without gaps, or add "
            "num_classes to the file"
        )


def _edge_index(name: str, arrays: Mapping[str, Array]) -> Ints:
    key, values = _one_of(name, arrays, "edge_index", "edges")
    wanted, axis = ("[2, edges]", 0) if key == "edge_index" else ("[edges, 2]", 1)
    whole = values.dtype.kind in "iu" or values.size == 0
    if values.ndim != 2 or values.shape[axis] != 2 or not whole:
        raise BadGraph(
            f"{name}: {key} is {values.dtype} of shape {list(values.shape)}, "
            f"but must be whole numbers of shape {wanted}"
        )
    return np.ascontiguousarray(values if axis == 0 else values.T, dtype=np.int64)


def _mask(name: str, arrays: Mapping[str, Array], part: str, vertices: int, split: int) -> Bools:
    """The mask of one split: from [V], from [splits, V], or from [V, splits]."""
    key, values = _one_of(name, arrays, f"{part}_mask", f"{part}_masks")
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise BadGraph(f"{name}: {key} must hold only true and false (or 1 and 0), but is {values.dtype}")
    if values.ndim == 1 and split > 0:
        raise BadGraph(f"spec.graph.split is {split}, but {name} holds one split only; leave it out")
    if values.ndim == 2:
        if values.shape[1] != vertices and values.shape[0] == vertices:
            values = values.T
        if not 0 <= split < values.shape[0]:
            raise BadGraph(
                f"spec.graph.split is {split}, but {name} holds {values.shape[0]} splits in {key}; "
                f"choose 0 to {values.shape[0] - 1}"
            )
        values = values[split]
    if values.shape != (vertices,):
        raise BadGraph(
            f"{name}: {key} has shape {list(arrays[key].shape)}, but there are {vertices} vertices; "
            f"give it shape [{vertices}] or [splits, {vertices}]"
        )
    return values.astype(np.bool_)
