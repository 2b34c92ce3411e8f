"""A node that runs real containers: containerd and kubelet in PID and mount namespaces of their own.

The first process of the PID namespace is the node: when it is killed, the kernel kills kubelet, containerd and
every container with it, and their mounts go too. That is both a clean stop and an honest loss of a node.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from . import binaries
from .archive import write_busybox_archive
from .controlplane import ControlPlane
from .errors import StartFailed
from .image_store import lend
from .kubectl import KubectlError
from .network import Network
from .node_settings import NodeSettings
from .processes import Process, await_ready, poll, start, start_ticks
from .runtime import Runtime

READY_SECONDS = 90.0
CGROUPS = Path("/sys/fs/cgroup")
CONTAINERS_WEIGHT = 8  # all containers together get the processor time of so many processes of this machine


class Node:
    """One node of a cluster. `kill` and `start` again make a node that was lost and came back."""

    def __init__(
        self,
        index: int,
        control_plane: ControlPlane,
        network: Network,
        runtime: Runtime,
        *,
        gpus: int = 0,
        store: Path | None = None,
    ) -> None:
        """`store`: images that the node has from the start, see image_store."""
        self.name = f"node-{index}"
        self.address = network.node(index)
        self.control_plane = control_plane
        self.network = network
        self.runtime = runtime
        self.gpus = gpus
        self.folder = control_plane.folder / self.name
        self.processes: list[Process] = []
        self._prepare()
        if store:
            lend(store, self.folder / "containerd")

    def start(self) -> None:
        self.boot()
        self.await_ready()

    def boot(self) -> None:
        """Start containerd and kubelet; `await_ready` waits for them, so that two nodes may boot at once."""
        weigh_containers()
        command = [
            *self.network.enter,
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        command += ["--propagation=private", "--", "bash", str(self.folder / "boot.sh")]
        path = f"{self.runtime.programs}:{self.runtime.root}/usr/sbin:{os.environ['PATH']}"
        outer = start(
            self.name, command, self.folder, environment={"PATH": path}, outlive=self.control_plane.outlive
        )
        await_ready(outer, lambda: _first_child(outer.pid) is not None, 10)
        first = _first_child(outer.pid)
        assert first is not None
        inner = Process(f"{self.name} kubelet", first, start_ticks(first) or 0, self.folder / "kubelet.log")
        self.processes = [inner, outer]  # the order of killing: when `inner` is gone, all inside it is

    def await_ready(self) -> None:
        """Import the pause image and wait until the API server calls the node Ready."""
        inner, outer = self.processes
        await_ready(outer, self._containerd_answers, READY_SECONDS)
        self.import_image(write_busybox_archive(self.runtime, self.folder / "busybox.tar"))
        await_ready(inner, self._is_ready, READY_SECONDS)
        self.advertise_gpus(self.gpus)

    def kill(self) -> None:
        """Lose the node at once: kubelet, containerd and containers, without a goodbye to the API server."""
        for process in self.processes:
            process.stop(grace_seconds=0)
        self.processes = []
        self.socket.unlink(missing_ok=True)
        remove_cgroups_of(self.folder)

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    def import_image(self, archive: Path) -> None:
        """Make the images of a docker-archive known to this node, as if it had pulled them."""
        self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """containerd's own command line, for tests that must reach below the kubelet."""
        program = self.runtime.programs / "ctr"
        done = subprocess.run(
            [program, "--address", self.socket, "--namespace", "k8s.io", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StartFailed(f"ctr {' '.join(arguments)} on {self.name}: {done.stderr.strip()}")
        return done.stdout

    def kill_container(self, container_id: str) -> None:
        """SIGKILL to a container's processes, as a crash would look; ids as pod status gives them."""
        self.ctr("tasks", "kill", "--signal", "SIGKILL", container_id.removeprefix("containerd://"))

    def advertise_gpus(self, count: int, resource: str = "nvidia.com/gpu") -> None:
        """Let the scheduler count `count` GPUs here; there are none, so training inside uses gloo."""
        escaped = resource.replace("/", "~1")
        # The kubelet copies capacity to allocatable at its next report; said here, it holds at once.
        patch = [
            {"op": "add", "path": f"/status/{field}/{escaped}", "value": str(count)}
            for field in ("capacity", "allocatable")
        ]
        self.control_plane.kubectl(
            "patch", "node", self.name, "--subresource=status", "--type=json", "-p", json.dumps(patch)
        )

    def _prepare(self) -> None:
        authority = self.control_plane.authority
        user = f"system:node:{self.name}"
        pair = authority.issue(self.name, user, groups=["system:nodes"], addresses=[self.name, self.address])
        self.folder.mkdir()
        authority.kubeconfig(self.folder / "kubeconfig", self.control_plane.url, pair)
        settings = NodeSettings(
            name=self.name,
            folder=self.folder,
            address=self.address,
            network=self.network,
            runtime=self.runtime,
            kubelet=binaries.find(["kubelet"])["kubelet"],
            serving=pair,
            client_ca=authority.root.certificate,
            grace_seconds=self.control_plane.node_grace_seconds,
        )
        settings.write()

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except StartFailed:
            return False
        return True

    def _is_ready(self) -> bool:
        try:
            node = self.control_plane.kubectl.get("node", self.name)
        except KubectlError:
            return False
        conditions: Sequence[dict[str, str]] = node["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _first_child(pid: int) -> int | None:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = children.read_text().split() if children.exists() else []
    return int(found[0]) if found else None


def weigh_containers() -> None:
    """Left alone, every container of every node shares what one process gets: a busy machine starves them."""
    one_hierarchy = not (CGROUPS / "cpu").exists()
    parent, file, of_a_process = (
        (CGROUPS, "cpu.weight", 100) if one_hierarchy else (CGROUPS / "cpu", "cpu.shares", 1024)
    )
    (parent / "k8s.io").mkdir(exist_ok=True)
    with suppress(OSError):  # where the root hands no processor time down there is nothing to weigh
        (parent / "k8s.io" / file).write_text(str(CONTAINERS_WEIGHT * of_a_process))


def remove_cgroups_of(node_folder: Path) -> None:
    """The containers are dead, but the kernel keeps their empty cgroups until somebody removes them."""
    state = node_folder / "containerd-state/io.containerd.runtime.v2.task/k8s.io"
    for container in [each.name for each in state.iterdir()] if state.exists() else []:
        for cgroup in [*CGROUPS.glob(f"*/k8s.io/{container}"), *CGROUPS.glob(f"k8s.io/{container}")]:
            _remove_cgroup(cgroup)
    for shared in [*CGROUPS.glob("*/k8s.io"), *CGROUPS.glob("k8s.io")]:
        with suppress(OSError):  # another cluster has containers in it
            shared.rmdir()


def _remove_cgroup(cgroup: Path) -> None:
    def removed() -> bool:
        try:
            cgroup.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # busy until the last of its processes is reaped
            return False
        return True

    poll(removed, 5)
