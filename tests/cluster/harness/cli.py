"""`python -m harness`: what `make cluster-up`, `make cluster-down` and `make test` call."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console

from . import binaries, preflight
from .cluster import Cluster
from .controlplane import ControlPlane
from .errors import NoCluster, StartFailed
from .images import project_image
from .saved import SavedCluster

PROJECT = Path(__file__).parents[3]
IMAGES = {name: f"localhost/gnnpipe-{name}" for name in ("operator", "trainer")}
VALUES = {"image": "operator", "trainerImage": "trainer"}  # the chart's name for each
TAG = "e2e"  # the same images as in `make e2e`, so that they are built once


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say what this machine lacks to run nodes with real containers")
    found = commands.add_parser("binaries", help="find or build what the control plane needs, and stop there")
    found.add_argument("--nodes", action="store_true", help="also what nodes need")
    up = commands.add_parser("up", help="start a cluster that stays: with nodes as root, without otherwise")
    up.add_argument("--nodes", type=int, default=1, choices=range(6), metavar="0..5")
    up.add_argument("--gpus", type=int, default=8, help="GPUs that each node claims to have")
    up.add_argument(
        "--gnnpipe", action="store_true", help="with the project's images on the nodes (root only)"
    )
    commands.add_parser("down", help="end the cluster that `up` started")
    arguments = parser.parse_args()
    try:
        if arguments.command == "check":
            check()
        elif arguments.command == "binaries":
            sys.exit(find_binaries(nodes=arguments.nodes))
        elif arguments.command == "up":
            start_cluster(arguments.nodes, arguments.gpus, with_images=arguments.gnnpipe)
        else:
            end_cluster()
    except (NoCluster, StartFailed) as error:
        sys.exit(f"no cluster: {error}")


def check() -> None:
    """Before `make e2e`: the reasons at once, not after ten minutes of building."""
    found = list(preflight.lacks())
    if found:
        sys.exit("\n  - ".join(["this machine cannot run a cluster with real containers:", *found]))


def find_binaries(*, nodes: bool) -> int:
    """Before the tests: so that the build is seen, and counts in no test's time limit."""
    wanted = [*binaries.CONTROL_PLANE, *(binaries.NODE if nodes else ())]
    try:
        binaries.find(wanted)
    except NoCluster as error:
        required = os.environ.get("GNNPIPE_REQUIRE_CLUSTER") == "1"
        fate = "cannot run" if required else "will be skipped"
        binaries.say(f"none to be had here, the tests that need it {fate}: {error}")
        return int(required)
    return 0


def start_cluster(nodes: int, gpus: int, *, with_images: bool) -> None:
    """Bring up a cluster and return; a second call shows the one that runs."""
    path = saved_path()
    if path.exists() and SavedCluster.load(path).alive:
        show(SavedCluster.load(path))
        return
    end_cluster()  # what a reboot or a crash left of an earlier one
    saved = SavedCluster.of(start(nodes, gpus, with_images))
    saved.save(path)
    show(saved)
    if with_images and saved.nodes:
        show_install()


def start(nodes: int, gpus: int, with_images: bool) -> Cluster | ControlPlane:
    if nodes > 0 and os.geteuid() == 0:
        named = IMAGES.items() if with_images else ()
        images = [project_image(PROJECT, name, f"{image}:{TAG}") for name, image in named]
        return Cluster(nodes=nodes, gpus_per_node=gpus, images=images, outlive=True).start()
    if nodes > 0:
        binaries.say("not root, so no nodes: pods will stay Pending")
    return ControlPlane(outlive=True).start()


def end_cluster() -> None:
    path = saved_path()
    if path.exists():
        SavedCluster.load(path).end()
        path.unlink()


def show(saved: SavedCluster) -> None:
    """Two lines to paste, and the nodes."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"export KUBECONFIG={saved.kubeconfig}")
    kubectl = binaries.find(["kubectl"])["kubectl"]
    console.print(f"export PATH={kubectl.parent}:$PATH   # kubectl and helm")
    console.print(f"{len(saved.nodes)} nodes; end it with: make cluster-down")


def show_install() -> None:
    """The command of docs/install.md, with the images that are on the nodes."""
    values = {f"{key}.repository": IMAGES[name] for key, name in VALUES.items()}
    values |= {f"{key}.tag": TAG for key in VALUES}
    settings = " ".join(f"--set {key}={value}" for key, value in values.items())
    chart = "helm install gnnpipe charts/gnnpipe --namespace gnnpipe-system --create-namespace"
    Console(soft_wrap=True, highlight=False).print(f"{chart} {settings}")


def saved_path() -> Path:
    folder = binaries.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "running.json"
