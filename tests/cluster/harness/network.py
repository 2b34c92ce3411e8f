"""A network of its own for one cluster: a network namespace, joined to this machine by one cable.

Pods, bridge and the rules of kube-proxy live inside the namespace and end with it. It has no default route,
so nothing strays off the machine; this machine reaches pods and Services through the cable.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from pathlib import Path

from filelock import FileLock

from .errors import NoCluster

BRIDGE = "pods0"
ONE_AT_A_TIME = Path("/run/gnnpipe-network.lock")  # of the machine, whatever cache its users have


@dataclass(frozen=True)
class Network:
    """10.x.0.0/16 cut into pods (the first quarter), Services (the third) and the cable (the last eight)."""

    name: str  # of the namespace; short, since interface names are made from it
    block: int  # the x

    @property
    def pods(self) -> str:
        return f"10.{self.block}.0.0/18"

    @property
    def services(self) -> str:
        return f"10.{self.block}.128.0/18"

    @property
    def host(self) -> str:
        """This machine's end of the cable: where the API server and the DNS listen."""
        return f"10.{self.block}.255.249"

    def node(self, index: int) -> str:
        """The address of a node (0 to 4) at the other end."""
        return f"10.{self.block}.255.{250 + index}"

    @property
    def enter(self) -> list[str]:
        """Put before a command, it runs inside. (`ip netns exec` would hide the cgroups.)"""
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    def start(self) -> None:
        cable, end = f"h-{self.name}", f"n-{self.name}"
        _ip("netns", "add", self.name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", end, "netns", self.name)
        _ip("address", "add", f"{self.host}/29", "dev", cable)
        _ip("link", "set", cable, "up")
        _ip("-netns", self.name, "link", "set", "lo", "up")
        for index in range(5):
            _ip("-netns", self.name, "address", "add", f"{self.node(index)}/29", "dev", end)
        _ip("-netns", self.name, "link", "set", end, "up")
        _ip("route", "add", f"10.{self.block}.0.0/16", "via", self.node(0))
        subprocess.run([*self.enter, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)

    def stop(self) -> None:
        """Also after a start that failed half way: what is not there is no error."""
        for command in (["link", "delete", f"h-{self.name}"], ["netns", "delete", self.name]):
            subprocess.run(["ip", *command], capture_output=True, check=False)


def start_network(name: str) -> Network:
    """A network that runs. Two clusters that start at once must not take the same addresses."""
    if os.geteuid() != 0:
        raise NoCluster("real nodes need root (containers, network namespaces); the control plane does not")
    with FileLock(ONE_AT_A_TIME):
        network = Network(name, _free_block())
        try:
            network.start()
        except BaseException:
            network.stop()
            raise
    return network


def _free_block() -> int:
    """A block of addresses that no route of this machine knows."""
    routes = json.loads(_ip("-json", "route", "show", "table", "all"))
    taken = [
        ip_network(route["dst"]) for route in routes if route["dst"][0].isdigit() and "." in route["dst"]
    ]
    for block in range(100, 250):
        if not any(IPv4Network(f"10.{block}.0.0/16").overlaps(each) for each in taken):
            return block
    raise NoCluster("every block from 10.100.0.0/16 to 10.249.0.0/16 is in use on this machine")


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCluster(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done.stdout
