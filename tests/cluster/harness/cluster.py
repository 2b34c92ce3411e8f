"""A whole cluster on one machine: network, control plane, DNS, kube-proxy, nodes. Needs root."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from . import binaries
from .controlplane import ControlPlane
from .dns import dnsmasq_command
from .image_store import image_store
from .kubectl import Kubectl
from .network import start_network
from .node import Node
from .processes import Process, await_ready, start
from .runtime import find_runtime


class Cluster:
    """`with Cluster(nodes=2, gpus_per_node=8) as cluster:`; everything it makes ends with it."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        gpus_per_node: int = 8,
        node_grace_seconds: int = 40,
        admission: Sequence[str] = (),
        images: Sequence[Path] = (),
        outlive: bool = False,
    ) -> None:
        """`images`: archives whose images every node has from the start."""
        self.runtime = find_runtime()
        self.store = image_store(images, self.runtime) if images else None
        self.node_grace_seconds = node_grace_seconds
        self.admission = admission
        self.outlive = outlive
        self.proxy = binaries.find(binaries.NODE)["kube-proxy"]
        self.node_count = nodes
        self.gpus_per_node = gpus_per_node
        self.nodes: list[Node] = []
        self.processes: list[Process] = []

    def start(self) -> Self:
        with ExitStack() as undo:
            self.network = start_network(f"gnnpipe-{secrets.token_hex(2)}")
            undo.callback(self.network.stop)
            self.control_plane = undo.enter_context(self._control_plane())
            undo.callback(self._stop_processes)
            self._start_dns()
            self._start_proxy()
            undo.callback(self._stop_nodes)
            for index in range(self.node_count):
                self.nodes.append(self._node(index))
                self.nodes[-1].boot()
            for node in self.nodes:
                node.await_ready()
            self._undo = undo.pop_all()
        return self

    def stop(self) -> None:
        self._undo.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubectl(self) -> Kubectl:
        return self.control_plane.kubectl

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    def node(self, name: str) -> Node:
        return next(each for each in self.nodes if each.name == name)

    def import_image(self, archive: Path) -> None:
        """Make an image known to every node."""
        for node in self.nodes:
            node.import_image(archive)

    def _control_plane(self) -> ControlPlane:
        return ControlPlane(
            address=self.network.host,
            service_range=self.network.services,
            node_grace_seconds=self.node_grace_seconds,
            admission=self.admission,
            outlive=self.outlive,
        )

    def _stop_nodes(self) -> None:
        for node in self.nodes:
            node.kill()

    def _stop_processes(self) -> None:
        for process in reversed(self.processes):
            process.stop(grace_seconds=0)

    def _node(self, index: int) -> Node:
        place = (index, self.control_plane, self.network, self.runtime)
        return Node(*place, gpus=self.gpus_per_node, store=self.store)

    def _start_dns(self) -> None:
        hosts = self.control_plane.folder / "hosts"
        hosts.touch()
        server = self._start("dnsmasq", dnsmasq_command(self.network.host, hosts))
        writer = [sys.executable, "-m", "harness.dns", self.kubeconfig, hosts, server.pid]
        process = self._start("dns-writer", [str(each) for each in writer])
        await_ready(process, lambda: hosts.stat().st_size > 0, 30)

    def _start_proxy(self) -> None:
        """kube-proxy for all nodes: they share one network namespace, so one set of rules serves them."""
        flags = {
            "kubeconfig": self.kubeconfig,
            "proxy-mode": "iptables",
            "cluster-cidr": self.network.pods,
            "hostname-override": "node-0",
            "bind-address": self.network.node(0),
            "healthz-bind-address": f"{self.network.node(0)}:10256",
            "metrics-bind-address": f"{self.network.node(0)}:10249",
            # 0: leave this machine's connection tracking as it is.
            "conntrack-max-per-core": 0,
            "conntrack-tcp-timeout-established": 0,
            "conntrack-tcp-timeout-close-wait": 0,
        }
        options = [f"--{flag}={value}" for flag, value in flags.items()]
        self._start("kube-proxy", [*self.network.enter, str(self.proxy), *options])

    def _start(self, name: str, command: list[str]) -> Process:
        package = str(Path(__file__).parents[1])
        process = start(
            name,
            command,
            self.control_plane.folder,
            environment={"PYTHONPATH": package},
            outlive=self.outlive,
        )
        self.processes.append(process)
        return process
