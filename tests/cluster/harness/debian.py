"""Debian packages, fetched and unpacked into a folder of ours: nothing is installed, no service starts.

apt runs with its own state folder, so this needs no root and leaves /etc/apt as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import NoCluster

SOURCES = Path("/etc/apt")


class Apt:
    """apt-get with a private state folder, and `deb-src` beside every `deb` that the machine has."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise NoCluster(
                "building Kubernetes needs Debian's packages and this machine has no apt-get: "
                "set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver, "
                "kube-controller-manager and kubectl"
            )
        self.folder = folder
        for part in ("sources.list.d", "state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self._write_sources()
        self._run("update")

    def unpack(self, packages: Sequence[str], into: Path) -> None:
        """Unpack binary packages (these only, not what they depend on) below `into`."""
        archives = self.folder / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        archives.mkdir()
        self._run("download", *packages, cwd=archives)
        into.mkdir(parents=True, exist_ok=True)
        for archive in sorted(archives.glob("*.deb")):
            subprocess.run(["dpkg", "-x", archive, into], check=True)
        shutil.rmtree(archives)

    def source_tarball(self, package: str, into: Path) -> Path:
        """The upstream tarball of a source package."""
        into.mkdir(parents=True, exist_ok=True)
        self._run("source", "--download-only", package, cwd=into)
        return next(iter(sorted(into.glob(f"{package}_*.orig.tar.*"))))

    def _write_sources(self) -> None:
        listed = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*.list"))]
        lines = [line for path in listed if path.exists() for line in path.read_text().splitlines()]
        binary = [line for line in lines if line.startswith("deb ")]
        source = [re.sub(r"^deb ", "deb-src ", line) for line in binary]
        (self.folder / "sources.list").write_text("\n".join([*binary, *source, ""]))
        for path in (SOURCES / "sources.list.d").glob("*.sources"):
            text = re.sub(r"(?m)^Types:.*$", "Types: deb deb-src", path.read_text())
            (self.folder / "sources.list.d" / path.name).write_text(text)

    def _run(self, *arguments: str, cwd: Path | None = None) -> None:
        settings = {
            "Dir::State": self.folder / "state",
            "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::Cache": self.folder / "cache",
            "Dir::Etc::sourcelist": self.folder / "sources.list",
            "Dir::Etc::sourceparts": self.folder / "sources.list.d",
            # Our folder may be closed to the user that apt drops to.
            "APT::Sandbox::User": "root",
        }
        options = [f"-o{name}={value}" for name, value in settings.items()]
        done = subprocess.run(
            ["apt-get", "-qq", *options, *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NoCluster(
                f"`apt-get {' '.join(arguments)}` failed: {done.stderr.strip()[-600:]}\n"
                "Kubernetes can be built from Debian 12's packages only; elsewhere set KUBEBUILDER_ASSETS"
            )


def install(packages: Sequence[str]) -> None:
    """Install packages that must be in place to work (iptables, buildah, ...), where they are not yet."""
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    present = {line.split()[0] for line in status.stdout.splitlines() if line.endswith(" installed")}
    missing = [name for name in packages if name not in present]
    if not missing:
        return
    if os.geteuid() != 0:
        raise NoCluster(f"packages are missing; as root: apt-get install {' '.join(missing)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=quiet, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NoCluster(f"`apt-get {' '.join(command)}` failed: {done.stderr.strip()[-600:]}")


def mirror() -> str:
    """The address of the archive that this machine's apt uses first."""
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    text = "\n".join(
        path.read_text() for path in files if path.suffix in (".list", ".sources") and path.exists()
    )
    found = re.search(r"(?m)^(?:URIs:\s*|deb\s+(?:\[.*?\]\s+)?)(\S+)", text)
    if found is None:
        raise NoCluster(f"no archive of Debian packages is named below {SOURCES}")
    return found[1]
