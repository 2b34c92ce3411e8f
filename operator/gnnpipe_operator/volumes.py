"""What a job's pods mount, and where the trainer finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnpipe_api import contract
from gnnpipe_api.job import JobSpec, Volume


def volumes_of(spec: JobSpec, *, trains: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A pod's volumes and its container's mounts of them. Only who trains exchanges anything or leaves a result."""
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def add(name: str, source: Mapping[str, Any], path: str, **mount: Any) -> None:
        volumes.append({"name": name, **source})
        given = {key: value for key, value in mount.items() if value}
        mounts.append({"name": name, "mountPath": path, **given})

    if trains:
        out = spec.checkpoint.volume
        add("shm", {"emptyDir": {"medium": "Memory"}}, contract.SHM_MOUNT)
        add("out", out.source if out else {"emptyDir": {}}, contract.OUT_MOUNT, subPath=_folder(out))
    add("tmp", {"emptyDir": {}}, "/tmp")
    add("cache", {"emptyDir": {}}, contract.CACHE_MOUNT)
    if spec.graph.volume:
        graph = spec.graph.volume
        # A file is only read; the named data sets are downloaded into their folder.
        read_only = spec.graph.source == "npz"
        add("graph", graph.source, graph.mount_path, subPath=_folder(graph), readOnly=read_only)
    if spec.model.code:
        code = {"configMap": {"name": spec.model.code.config_map}}
        add("code", code, contract.CODE_MOUNT, readOnly=True)
    return volumes, mounts


def _folder(volume: Volume | None) -> str | None:
    return volume.sub_path if volume else None
