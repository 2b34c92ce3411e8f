"""A cluster that outlives the command that made it: what `make cluster-down` must know to end it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from .cluster import Cluster
from .controlplane import ControlPlane
from .network import Network
from .node import remove_cgroups_of
from .processes import Process


@dataclass(frozen=True)
class SavedCluster:
    """Process ids, folder and network; no connection to the objects that made them."""

    folder: Path
    processes: list[Process]  # in the order of ending
    network: Network | None
    nodes: list[str]

    @classmethod
    def of(cls, running: Cluster | ControlPlane) -> Self:
        if isinstance(running, ControlPlane):
            return cls(running.folder, list(reversed(running.processes.values())), None, [])
        inner = [process for node in running.nodes for process in node.processes]
        plane = running.control_plane
        ending = [*inner, *reversed(running.processes), *reversed(plane.processes.values())]
        return cls(plane.folder, ending, running.network, [node.name for node in running.nodes])

    @classmethod
    def load(cls, path: Path) -> Self:
        content = json.loads(path.read_text())
        processes = [Process(**{**each, "log": Path(each["log"])}) for each in content["processes"]]
        network = Network(**content["network"]) if content["network"] else None
        return cls(Path(content["folder"]), processes, network, content["nodes"])

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=str, indent=2))

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def alive(self) -> bool:
        return all(process.alive for process in self.processes)

    def end(self) -> None:
        for process in self.processes:
            process.stop(grace_seconds=0)
        for name in self.nodes:
            remove_cgroups_of(self.folder / name)
        if self.network:
            self.network.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
