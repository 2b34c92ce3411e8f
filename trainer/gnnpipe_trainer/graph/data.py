"""A graph as its source gave it, and what must hold before anything is trained on it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNLABELLED = -1  # a vertex without a known class; allowed outside all three masks only


class BadGraph(ValueError):
    """The data is wrong and retrying cannot help: the caller ends with ExitCode.INVALID."""


@dataclass(frozen=True, eq=False)
class GraphData:
    """One graph in its source's own numbering, V vertices and E edges as given (not yet cleaned)."""

    name: str  # where it came from, as an error message should call it
    features: Floats  # [V, F]
    labels: npt.NDArray[Any]  # [V] int64 (one class each) or [V, C] float32 of 0 and 1 (multi-label)
    edge_index: Ints  # [2, E]: sources, targets
    train_mask: Bools  # [V]
    val_mask: Bools  # [V]
    test_mask: Bools  # [V]
    num_classes: int
    directed: bool = False

    @property
    def num_vertices(self) -> int:
        return int(self.features.shape[0])

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2


def check(data: GraphData) -> GraphData:
    """The same graph, or BadGraph with one sentence about the first thing that is wrong with it."""
    _check_features(data)
    _check_edges(data)
    _check_masks(data)
    _check_labels(data)
    return data


def _check_features(data: GraphData) -> None:
    features = data.features
    if features.ndim != 2 or features.dtype != np.float32:
        raise BadGraph(
            f"{data.name}: features are {features.dtype} of shape {list(features.shape)}, "
            "but must be float32 of shape [vertices, features]"
        )
    if 0 in features.shape:
        raise BadGraph(
            f"{data.name}: features have shape {list(features.shape)}, "
            "but there must be at least one vertex with one feature"
        )
    # Row sums in float64 are finite exactly when every float32 in the row is, without a [V, F] temporary.
    bad = np.flatnonzero(~np.isfinite(features.sum(axis=1, dtype=np.float64)))
    if bad.size:
        vertex = int(bad[0])
        column = int(np.flatnonzero(~np.isfinite(features[vertex]))[0])
        raise BadGraph(
            f"{data.name}: features of {bad.size} vertices are not finite, the first is "
            f"{features[vertex, column]} at vertex {vertex}, feature {column}; "
            "replace missing values before training"
        )


def _check_edges(data: GraphData) -> None:
    edges = data.edge_index
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype != np.int64:
        raise BadGraph(
            f"{data.name}: edges are {edges.dtype} of shape {list(edges.shape)}, "
            "but must be int64 of shape [2, edges]"
        )
    outside = np.flatnonzero(((edges < 0) | (edges >= data.num_vertices)).any(axis=0))
    if outside.size:
        source, target = (int(end) for end in edges[:, outside[0]])
        raise BadGraph(
            f"{data.name}: edge {int(outside[0])} goes from {source} to {target}, but vertices are "
            f"0 to {data.num_vertices - 1}; number vertices from 0 and give each a row of features"
        )


def _check_masks(data: GraphData) -> None:
    masks = {"train_mask": data.train_mask, "val_mask": data.val_mask, "test_mask": data.test_mask}
    for key, mask in masks.items():
        if mask.dtype != np.bool_ or mask.shape != (data.num_vertices,):
            raise BadGraph(
                f"{data.name}: {key} is {mask.dtype} of shape {list(mask.shape)}, but must be bool of shape "
                f"[{data.num_vertices}], one entry for each vertex"
            )
    if not data.train_mask.any():
        raise BadGraph(
            f"{data.name}: train_mask holds no vertex, so there is nothing to learn from; "
            "mark at least one training vertex"
        )
    for key in ("val_mask", "test_mask"):
        shared = int((data.train_mask & masks[key]).sum())
        if shared:
            log.warning(
                "%s: %d vertices are in train_mask and in %s; that accuracy will look too good",
                data.name,
                shared,
                key,
            )


def _check_labels(data: GraphData) -> None:
    labels = data.labels
    if labels.shape[:1] != (data.num_vertices,):
        raise BadGraph(
            f"{data.name}: labels have shape {list(labels.shape)}, but there are {data.num_vertices} "
            "vertices; give one row of labels for each"
        )
    if data.num_classes < 1:
        raise BadGraph(
            f"{data.name}: there are {data.num_classes} classes; labels must name at least class 0"
        )
    if labels.ndim == 1 and labels.dtype == np.int64:
        _check_class_labels(data)
    elif labels.ndim == 2 and labels.dtype == np.float32:
        _check_multilabels(data)
    else:
        raise BadGraph(
            f"{data.name}: labels are {labels.dtype} of shape {list(labels.shape)}, but must be int64 of "
            "shape [vertices] or, for multi-label, float32 of shape [vertices, classes]"
        )


def _check_class_labels(data: GraphData) -> None:
    used = data.train_mask | data.val_mask | data.test_mask
    in_range = (data.labels >= 0) & (data.labels < data.num_classes)
    wrong = np.flatnonzero(~in_range & (used | (data.labels != UNLABELLED)))
    if wrong.size:
        vertex = int(wrong[0])
        raise BadGraph(
            f"{data.name}: label {int(data.labels[vertex])} of vertex {vertex} is not one of the classes "
            f"0 to {data.num_classes - 1}; number classes from 0, and leave vertices without a class "
            f"(label {UNLABELLED}) out of the masks"
        )


def _check_multilabels(data: GraphData) -> None:
    if data.labels.shape[1] != data.num_classes:
        raise BadGraph(
            f"{data.name}: multi-label rows are {data.labels.shape[1]} wide, "
            f"but there are {data.num_classes} classes"
        )
    used = data.train_mask | data.val_mask | data.test_mask
    wrong = np.flatnonzero(used & ~np.isin(data.labels, (0.0, 1.0)).all(axis=1))
    if wrong.size:
        vertex = int(wrong[0])
        raise BadGraph(
            f"{data.name}: multi-label row of vertex {vertex} holds other values than 0 and 1; "
            "give 1 for each class it has, or leave it out of the masks"
        )
