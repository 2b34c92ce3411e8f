"""`spec.graph`: which graph is trained on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from gnnpipe_api.part import Count, Part, Share, as_json


class Volume(Part):
    """A Kubernetes volume: one source as in a pod's `volumes`, for example `persistentVolumeClaim`."""

    # The sources are Kubernetes' own and grow with it: rules_graph.py checks that exactly one is given.
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(as_json)]]

    sub_path: str | None = None
    """Folder inside the volume to mount, instead of its root."""

    @property
    def source(self) -> dict[str, Any]:
        """The volume source alone, as it goes into a pod's `volumes` entry."""
        return dict(self.model_extra or {})


class GraphVolume(Volume):
    """A volume that holds the graph, and where the pods see it."""

    mount_path: str
    """Absolute path of the volume inside the pods; `graph.path` and `graph.root` lie under it."""


class GraphSpec(Part):
    """The graph: generated, a file, or a public data set by name."""

    source: Literal["synthetic", "npz", "planetoid", "ogb", "pyg"]
    """Where the graph comes from: synthetic (generated here), npz (a file), or planetoid, ogb or pyg (a
    public data set by name)."""
    path: str | None = None
    """The .npz file (source npz only). On a laptop a relative path starts at the manifest's folder."""
    name: str | None = None
    """Name of the data set (sources planetoid, ogb and pyg), for example Cora or ogbn-arxiv."""
    root: str | None = None
    """Folder that holds the data set, or into which it is downloaded (sources planetoid, ogb and pyg)."""
    split: Annotated[int, Field(ge=0)] = 0
    """Which train/validation/test split to use, where the data has several; counted from 0."""
    directed: bool | None = None
    """Keep edges one-way. Left out, every edge is used in both directions."""
    normalize_features: bool | None = None
    """Scale the features of each vertex to a sum of 1, as the authors of GCN and GCNII do with citation
    graphs. Left out, features are taken as they are."""
    volume: GraphVolume | None = None
    """Volume with the data, mounted in every pod. A local run does not use it."""

    # The rest describes a synthetic graph and is refused for other sources (rules.py).
    vertices: Count = 5000
    """Synthetic: number of vertices."""
    average_degree: Annotated[float, Field(gt=0)] = 20.0
    """Synthetic: mean number of neighbours per vertex."""
    classes: Annotated[int, Field(ge=2)] = 16
    """Synthetic: number of classes, which are also the communities of the graph."""
    features: Count = 64
    """Synthetic: number of features per vertex."""
    homophily: Share = 0.6
    """Synthetic: share of edges that join two vertices of one class."""
    power_law: Annotated[float, Field(gt=1)] = 2.5
    """Synthetic: exponent of the power law that the degrees follow; smaller means heavier hubs."""
    feature_noise: Annotated[float, Field(ge=0)] = 3.0
    """Synthetic: standard deviation of the noise on the features, in units of the distance between
    classes."""
    train_share: Share = 0.1
    """Synthetic: share of the vertices used for training."""
    val_share: Share = 0.2
    """Synthetic: share of the vertices used for validation; what is left is the test set."""
    seed: int = 0
    """Synthetic: seed of the generator; the same seed gives the same graph."""


SYNTHETIC_FIELDS = (
    "vertices",
    "average_degree",
    "classes",
    "features",
    "homophily",
    "power_law",
    "feature_noise",
    "train_share",
    "val_share",
    "seed",
)
