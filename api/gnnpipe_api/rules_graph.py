"""Rules about `spec.graph` and the volumes."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import PurePosixPath

from gnnpipe_api.contract import CACHE_MOUNT, CODE_MOUNT, OUT_MOUNT, SHM_MOUNT
from gnnpipe_api.job import GraphSpec, JobSpec, Volume
from gnnpipe_api.problems import Problem
from gnnpipe_api.rule import Cel, Rule, rule
from gnnpipe_api.spec_graph import SYNTHETIC_FIELDS

_BY_NAME = ("planetoid", "ogb", "pyg")
_VOLUME_SOURCES = (
    "persistentVolumeClaim",
    "hostPath",
    "nfs",
    "csi",
    "emptyDir",
    "ephemeral",
    "configMap",
    "secret",
    "projected",
    "image",
)
RESERVED_MOUNTS = (CODE_MOUNT, OUT_MOUNT, CACHE_MOUNT, SHM_MOUNT)


@rule(
    *("spec.graph.source", "spec.graph.path", "spec.graph.name", "spec.graph.root"),
    cel=(
        Cel("self.graph.source != 'npz' || has(self.graph.path)", "graph.path: source npz needs a path."),
        Cel(
            "!(self.graph.source in ['planetoid', 'ogb', 'pyg'])"
            " || (has(self.graph.name) && has(self.graph.root))",
            "graph: sources planetoid, ogb and pyg need a name and a root.",
        ),
    ),
)
def a_source_has_what_it_needs(spec: JobSpec) -> Iterator[Problem]:
    graph = spec.graph
    if graph.source == "npz" and not graph.path:
        yield Problem("spec.graph.path", "source npz needs the path of the .npz file.")
    if graph.source in _BY_NAME and not graph.name:
        yield Problem("spec.graph.name", f"source {graph.source} needs the name of the data set.")
    if graph.source in _BY_NAME and not graph.root:
        yield Problem("spec.graph.root", f"source {graph.source} needs the folder that holds the data set.")


@rule(
    *("spec.graph.source", "spec.graph.path", "spec.graph.name", "spec.graph.root", "spec.graph.volume"),
    cel=(
        Cel(
            "self.graph.source == 'npz' || !has(self.graph.path)", "graph.path: only source npz takes a path."
        ),
        Cel(
            "self.graph.source in ['planetoid', 'ogb', 'pyg']"
            " || !(has(self.graph.name) || has(self.graph.root))",
            "graph: only sources planetoid, ogb and pyg take a name and a root.",
        ),
    ),
)
def a_source_has_nothing_it_does_not_use(spec: JobSpec) -> Iterator[Problem]:
    graph = spec.graph
    if graph.path is not None and graph.source != "npz":
        yield Problem(
            "spec.graph.path", f"only source npz takes a path, but spec.graph.source is {graph.source}."
        )
    for field, value in (("name", graph.name), ("root", graph.root)):
        if value is not None and graph.source not in _BY_NAME:
            yield Problem(
                f"spec.graph.{field}",
                f"only planetoid, ogb and pyg take a {field}, but spec.graph.source is {graph.source}.",
            )
    if graph.volume is not None and graph.source == "synthetic":
        yield Problem("spec.graph.volume", "a synthetic graph is generated and needs no volume.")


@rule("spec.graph")
def only_a_synthetic_graph_has_its_parameters(spec: JobSpec) -> Iterator[Problem]:
    if spec.graph.source == "synthetic":
        return
    for field in SYNTHETIC_FIELDS:
        about = GraphSpec.model_fields[field]
        # A default may stand there because a program wrote the manifest with all its defaults.
        if getattr(spec.graph, field) != about.default:
            yield Problem(
                f"spec.graph.{about.alias}",
                f"only a synthetic graph takes this, but spec.graph.source is {spec.graph.source}.",
            )


@rule("spec.graph.source", "spec.graph.vertices", "spec.graph.classes", "spec.graph.averageDegree")
def a_synthetic_graph_is_large_enough(spec: JobSpec) -> Iterator[Problem]:
    graph = spec.graph
    if graph.source != "synthetic":
        return
    if graph.classes > graph.vertices:
        yield Problem(
            "spec.graph.classes",
            f"{graph.classes} classes need at least {graph.classes} vertices, "
            f"but spec.graph.vertices is {graph.vertices}.",
        )
    if graph.average_degree >= graph.vertices:
        yield Problem(
            "spec.graph.averageDegree",
            f"must be less than the {graph.vertices} of spec.graph.vertices, got {graph.average_degree:g}.",
        )


@rule("spec.graph.source", "spec.graph.trainShare", "spec.graph.valShare")
def a_synthetic_graph_leaves_vertices_for_the_test(spec: JobSpec) -> Iterator[Problem]:
    train, val = spec.graph.train_share, spec.graph.val_share
    if spec.graph.source != "synthetic":
        return
    if train == 0:
        yield Problem(
            "spec.graph.trainShare", "must be greater than 0: nothing can be learnt from no vertices."
        )
    if train + val >= 1:
        yield Problem(
            "spec.graph.valShare",
            f"trainShare {train:g} and valShare {val:g} leave nothing to test on; keep their sum below 1.",
        )


@rule("spec.graph.volume", "spec.checkpoint.volume")
def a_volume_has_exactly_one_source(spec: JobSpec) -> Iterator[Problem]:
    for path, volume in (
        ("spec.graph.volume", spec.graph.volume),
        ("spec.checkpoint.volume", spec.checkpoint.volume),
    ):
        if volume is not None:
            yield from _source_problems(path, volume)


def _source_problems(path: str, volume: Volume) -> Iterator[Problem]:
    given = list(volume.source)
    if "mountPath" in given:  # only a checkpoint volume, which is not a GraphVolume, gets here
        yield Problem(f"{path}.mountPath", f"leave it out: checkpoints are always mounted at {OUT_MOUNT}.")
        return
    for name in given:
        near = get_close_matches(name, _VOLUME_SOURCES, n=1, cutoff=0.8)
        if near and near[0] != name:
            yield Problem(f"{path}.{name}", f"unknown field; did you mean {near[0]}?")
            return
    if len(given) != 1:
        sources = "none" if not given else " and ".join(given)
        yield Problem(
            path, f"needs exactly one volume source such as persistentVolumeClaim, but has {sources}."
        )
    elif not isinstance(volume.source[given[0]], dict):
        yield Problem(f"{path}.{given[0]}", "must be an object with fields.")


@rule("spec.graph.volume", "spec.graph.path", "spec.graph.root")
def the_graph_lies_in_its_volume(spec: JobSpec) -> Iterator[Problem]:
    volume = spec.graph.volume
    if volume is None or spec.graph.source == "synthetic":
        return
    mount = PurePosixPath(volume.mount_path)
    if not mount.is_absolute():
        yield Problem(
            "spec.graph.volume.mountPath",
            f"must be an absolute path such as /data, got {volume.mount_path!r}.",
        )
        return
    reserved = reserved_mount(volume.mount_path)
    if reserved is not None:
        yield Problem(
            "spec.graph.volume.mountPath",
            f"{volume.mount_path} collides with {reserved}, which GNNPipe mounts.",
        )
    for field, value in (("path", spec.graph.path), ("root", spec.graph.root)):
        if value is not None and not PurePosixPath(value).is_relative_to(mount):
            yield Problem(
                f"spec.graph.{field}",
                f"{value} is not inside the volume, which is mounted at {volume.mount_path}.",
            )


def reserved_mount(mount_path: str) -> str | None:
    """The mount of GNNPipe's own that a path would hide or lie in, if any."""
    path = PurePosixPath(mount_path)
    for reserved in map(PurePosixPath, RESERVED_MOUNTS):
        if path.is_relative_to(reserved) or reserved.is_relative_to(path):
            return str(reserved)
    return None


GRAPH_RULES: tuple[Rule, ...] = (
    a_source_has_what_it_needs,
    a_source_has_nothing_it_does_not_use,
    only_a_synthetic_graph_has_its_parameters,
    a_synthetic_graph_is_large_enough,
    a_synthetic_graph_leaves_vertices_for_the_test,
    a_volume_has_exactly_one_source,
    the_graph_lies_in_its_volume,
)
