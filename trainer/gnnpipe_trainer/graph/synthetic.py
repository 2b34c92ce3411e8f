"""A generated graph: communities, power-law degrees and noisy features (degree-corrected block model)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnpipe_trainer.graph.data import Bools, Floats, GraphData, Ints
from gnnpipe_trainer.graph.edges import distinct

TOP_UP_ROUNDS = (
    8  # redraws for edges lost as duplicates or self-loops; dense small graphs stay a little short
)
DRAWN_AT_ONCE = 8_000_000  # edges: what is drawn takes ten times the memory of what is kept of it


def synthetic_graph(
    *,
    vertices: int,
    average_degree: float,
    classes: int,
    features: int,
    homophily: float,
    power_law: float,
    feature_noise: float,
    train_share: float,
    val_share: float,
    seed: int,
) -> GraphData:
    """Degree-corrected stochastic block model with one block per class.

    `homophily` is the share of edges inside a class, `power_law` the exponent of the degree distribution,
    `feature_noise` the standard deviation of the noise on a feature, in units of the typical difference
    between two classes there. 5,000 vertices of degree 20, 16 classes, 64 features, homophily 0.6, a tenth for
    training: with noise 3 a linear model reaches 36%, GNNs 79 to 93%; with noise 3.5 it is 28% and 69 to 85%.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(vertices, dtype=np.int64) % classes)
    edges = _edges(rng, labels, classes, average_degree, homophily, power_law)
    train_mask, val_mask, test_mask = split_masks(rng, vertices, train_share, val_share)
    return GraphData(
        name="spec.graph (synthetic)",
        features=_features(rng, labels, classes, features, feature_noise),
        labels=labels,
        edge_index=edges,
        train_mask=train_mask,
        val_mask=val_mask,
        test_mask=test_mask,
        num_classes=classes,
    )


def split_masks(
    rng: np.random.Generator, vertices: int, train_share: float, val_share: float
) -> tuple[Bools, Bools, Bools]:
    """Random train, val and test masks [V]; test takes the rest, train gets at least one vertex."""
    place = rng.permutation(vertices)
    train_end = max(1, round(vertices * train_share))
    val_end = train_end + round(vertices * val_share)
    return place < train_end, (place >= train_end) & (place < val_end), place >= val_end


def _edges(
    rng: np.random.Generator,
    labels: Ints,
    classes: int,
    average_degree: float,
    homophily: float,
    power_law: float,
) -> Ints:
    """Undirected edges [2, E], each once, without self-loops; E = V x average_degree / 2."""
    vertices = labels.size
    count = round(vertices * average_degree / 2)
    by_class = np.argsort(labels, kind="stable")  # a class is a contiguous range of this order
    first = np.searchsorted(labels[by_class], np.arange(classes + 1))
    weights = _degree_weights(rng, vertices, average_degree, power_law)
    cumulative = np.concatenate(([0.0], np.cumsum(weights)))

    keys = np.empty(0, dtype=np.int64)
    for _ in range(TOP_UP_ROUNDS):
        missing = count - keys.size
        if missing <= 0:
            break
        drawn = [keys]
        for done in range(0, missing, DRAWN_AT_ONCE):
            size = min(DRAWN_AT_ONCE, missing - done)
            source = _draw(rng, cumulative, np.zeros(size, np.int64), np.full(size, vertices))
            block = _target_class(rng, labels[by_class[source]], classes, homophily)
            target = _draw(rng, cumulative, first[block], first[block + 1])
            keep = source != target
            low, high = np.minimum(source, target)[keep], np.maximum(source, target)[keep]
            drawn.append(low * vertices + high)
        keys = np.concatenate(drawn)
        del drawn  # else it would be held twice while it is sorted
        keys = distinct(keys)
    return np.stack((by_class[keys // vertices], by_class[keys % vertices])).astype(np.int64)


def _degree_weights(
    rng: np.random.Generator, vertices: int, average_degree: float, power_law: float
) -> npt.NDArray[np.float64]:
    """Expected relative degrees [V]: Pareto with density exponent `power_law`."""
    weights: npt.NDArray[np.float64] = (1.0 - rng.random(vertices)) ** (-1.0 / (power_law - 1.0))
    # Two hubs of more than sqrt(V x degree) expect more than one edge between them, which would be lost.
    most = float(weights.mean()) * max(1.0, (vertices / average_degree) ** 0.5)
    return weights.clip(max=most)


def _draw(
    rng: np.random.Generator, cumulative: npt.NDArray[np.float64], first: Ints, end: Ints
) -> npt.NDArray[np.int64]:
    """One position from each half-open range [first, end), in proportion to the weights."""
    low, high = cumulative[first], cumulative[end]
    position = np.searchsorted(cumulative, low + rng.random(first.size) * (high - low), side="right") - 1
    return np.clip(position, first, end - 1)


def _target_class(rng: np.random.Generator, source_class: Ints, classes: int, homophily: float) -> Ints:
    if classes == 1:
        return source_class
    elsewhere = rng.random(source_class.size) >= homophily
    step = rng.integers(1, classes, source_class.size)
    return np.where(elsewhere, (source_class + step) % classes, source_class)


def _features(
    rng: np.random.Generator, labels: Ints, classes: int, features: int, feature_noise: float
) -> Floats:
    """Gaussian class centres plus Gaussian noise, scaled to about unit variance; [V, F]."""
    # Two classes differ by about 1 in each feature when the centres have variance 1/2.
    centres = rng.standard_normal((classes, features), dtype=np.float32) * np.float32(np.sqrt(0.5))
    values = rng.standard_normal((labels.size, features), dtype=np.float32)
    values *= np.float32(feature_noise)
    values += centres[labels]
    values /= np.float32(np.sqrt(0.5 + feature_noise**2))
    return values
