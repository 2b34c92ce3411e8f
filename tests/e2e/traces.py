"""What a cluster has on this machine while it runs, and what of it is left afterwards."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
from harness.cluster import Cluster
from harness.processes import start_ticks


@dataclass(frozen=True)
class Trace:
    folder: Path
    network: str
    processes: dict[int, int]  # start time by id: tells a process from a later one with its id

    @classmethod
    def of(cls, cluster: Cluster) -> Trace:
        ours = [each.pid for each in (*cluster.processes, *cluster.control_plane.processes.values())]
        for node in cluster.nodes:
            ours += [each.pid for each in node.processes] + _below(node.processes[0].pid)
        ticks = {pid: start_ticks(pid) for pid in ours}
        return cls(
            cluster.control_plane.folder,
            cluster.network.name,
            {pid: started for pid, started in ticks.items() if started is not None},
        )

    def left(self) -> list[str]:
        """Processes, the folder, mounts below it, interfaces and the network namespace that still exist."""
        found = [f"process {pid}" for pid, ticks in self.processes.items() if start_ticks(pid) == ticks]
        found += [str(self.folder)] if self.folder.exists() else []
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found += [line for line in mounts if str(self.folder) in line]
        links = subprocess.check_output(["ip", "-brief", "link"], text=True).splitlines()
        found += [line for line in links if self.network in line]
        return found + [str(path) for path in Path("/run/netns").glob(self.network)]


def _below(first: int) -> list[int]:
    """Every process that descends from this one: kubelet, containerd and all containers of a node."""
    return [child.pid for child in psutil.Process(first).children(recursive=True)]
