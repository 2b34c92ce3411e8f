"""Two machines with a slow network between them, made of two network namespaces on this one.

Each namespace has its own network; a pair of virtual interfaces joins them, and a token bucket at both ends lets
only so many bits per second through. Inside a namespace nothing is limited, as inside a machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "gnnpipe-bench-"  # then the process id of whoever made it, and 0 or 1
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # reserved for documentation: cannot be anybody's
INTERFACES = ("link0", "link1")
QUEUE_MILLISECONDS = 200  # what waits longer is dropped, and TCP slows down
BURST_SECONDS = 0.004  # of full speed that may pass at once; the kernel's timer is not finer
LEAST_BURST_BYTES = 128 * 1024  # two of the largest packets
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class NoLink(RuntimeError):
    """The network cannot be emulated here; the sentence says why and what would help."""


@dataclass(frozen=True)
class Machine:
    """One of the two ends."""

    namespace: str
    address: str
    interface: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The same command, run on this machine; the process id stays that of whoever is started."""
        return ["ip", "netns", "exec", self.namespace, *arguments]


def bits_per_second(rate: str) -> float:
    """1e9 for 1gbit; tc's own spelling."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate.lower())
    if match is None or float(match[1]) == 0:
        raise ValueError(f"--rate: {rate!r} is no rate; write it as 200mbit or 1gbit")
    return float(match[1]) * UNITS[match[2]]


@contextmanager
def emulated_link(rate: str) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with `rate` between them in each direction; everything is removed at the end."""
    burst = max(LEAST_BURST_BYTES, int(bits_per_second(rate) / 8 * BURST_SECONDS))
    _check_tools()
    _remove_leftovers()
    first, second = machines = tuple(
        Machine(f"{PREFIX}{os.getpid()}-{i}", ADDRESSES[i], INTERFACES[i]) for i in (0, 1)
    )
    try:
        for machine in machines:
            _run("ip", "netns", "add", machine.namespace)
        ends = [["name", m.interface, "netns", m.namespace] for m in machines]
        _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for machine in machines:
            inside = ["ip", "-netns", machine.namespace]
            _run(*inside, "addr", "add", f"{machine.address}/30", "dev", machine.interface)
            _run(*inside, "link", "set", machine.interface, "up")
            _run(*inside, "link", "set", "lo", "up")
            shape = ["rate", rate, "burst", str(burst), "latency", f"{QUEUE_MILLISECONDS}ms"]
            device = ["qdisc", "add", "dev", machine.interface, "root", "tbf"]
            _run("tc", "-netns", machine.namespace, *device, *shape)
        yield first, second
    finally:
        for machine in machines:
            _remove(machine.namespace)


def why_no_link() -> str | None:
    """Why links cannot be emulated here, as a sentence; None where they can."""
    try:
        with emulated_link("1gbit"):
            return None
    except NoLink as reason:
        return str(reason)


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise NoLink("a link can be emulated by root only; run the benchmark as root")
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise NoLink(
                f"a link is emulated with {tool}, which is not here; install Debian's package iproute2"
            )


def _remove_leftovers() -> None:
    """Of benchmarks that were killed outright."""
    for entry in Path("/run/netns").glob(f"{PREFIX}*"):
        maker = entry.name.removeprefix(PREFIX).split("-")[0]
        if not Path("/proc", maker).exists():
            _remove(entry.name)


def _remove(namespace: str) -> None:
    """With the namespace go its end of the pair and, as ends cannot stand alone, the other one."""
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoLink(f"a link cannot be emulated here: {' '.join(command)}: {done.stderr.strip()}")
