"""What runs containers: containerd, runc and the CNI plugins, unpacked from Debian's packages, not installed."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from . import debian
from .binaries import cache_folder, say
from .errors import NoCluster

UNPACKED = ("containerd", "runc", "containernetworking-plugins", "busybox-static")
# These have libraries and paths of their own; none of them starts a service.
INSTALLED = ("iptables", "conntrack", "iproute2", "procps", "dnsmasq-base", "libseccomp2")


@dataclass(frozen=True)
class Runtime:
    """Where the parts are."""

    root: Path

    @property
    def programs(self) -> Path:
        return self.root / "usr/bin"

    @property
    def plugins(self) -> Path:
        return self.root / "usr/lib/cni"

    @property
    def runc(self) -> Path:
        return self.root / "usr/sbin/runc"

    @property
    def busybox(self) -> Path:
        return self.root / "bin/busybox"


def find_runtime() -> Runtime:
    """The cached parts; fetched first where they are missing. Raises NoCluster."""
    if os.geteuid() != 0:
        raise NoCluster("real nodes need root (containers, network namespaces); the control plane does not")
    if platform.machine() != "x86_64":
        raise NoCluster("real nodes are built on Debian 12 (x86_64) only")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "runtime.done"
    with FileLock(folder / "runtime.lock"):
        debian.install(INSTALLED)
        if not done.exists():
            say("unpacking containerd, runc and the CNI plugins from Debian's packages")
            debian.Apt(folder / "runtime-apt").unpack(UNPACKED, folder / "runtime")
            done.touch()
    return Runtime(folder / "runtime")
