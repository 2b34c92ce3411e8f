"""Images unpacked once and lent to every node: what containerd makes of an archive is gigabytes, always the same."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from .binaries import cache_folder, say
from .errors import NoCluster
from .processes import await_ready, start
from .runtime import Runtime

SETTINGS = """version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{socket}"
"""


def image_store(archives: Sequence[Path], runtime: Runtime) -> Path:
    """A root folder of containerd that holds these archives' images; kept until other archives are asked for."""
    key = hashlib.sha256("\0".join(sorted(each.name for each in archives)).encode()).hexdigest()[:16]
    stores = cache_folder() / "stores"
    stores.mkdir(parents=True, exist_ok=True)
    store = stores / key
    with FileLock(cache_folder() / "stores.lock"):
        if not store.exists():
            for older in stores.iterdir():
                shutil.rmtree(older)
            say("unpacking both images for the nodes (once for each build)")
            made = stores / f"{key}.new"
            _import(archives, runtime, made)
            made.rename(store)
    return store


def lend(store: Path, root: Path) -> None:
    """Give a node's containerd a root folder with the store's images.

    Layers are hard links: containers only read them. The databases are the node's own.
    """
    linked = subprocess.run(["cp", "-al", store, root], capture_output=True, check=False)
    if linked.returncode != 0:  # on another file system
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", store, root], check=True)
    for database in root.glob("io.containerd.*/*.db"):
        own = database.with_suffix(".own")
        shutil.copy2(database, own)
        own.replace(database)
    shutil.rmtree(
        root / "io.containerd.grpc.v1.introspection", ignore_errors=True
    )  # an id of each containerd


def _import(archives: Sequence[Path], runtime: Runtime, root: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gnnpipe-store-") as name:
        folder = Path(name)
        socket, settings = folder / "containerd.sock", folder / "containerd.toml"
        settings.write_text(SETTINGS.format(root=root, state=folder / "state", socket=socket))
        command = ["unshare", "--mount", f"{runtime.programs}/containerd", f"--config={settings}"]
        containerd = start("containerd", command, folder)
        try:
            await_ready(containerd, socket.exists, 60)
            for archive in archives:
                _ctr(runtime, socket, "images", "import", str(archive))
        finally:
            containerd.stop()


def _ctr(runtime: Runtime, socket: Path, *arguments: str) -> None:
    command = [f"{runtime.programs}/ctr", f"--address={socket}", "--namespace=k8s.io", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCluster(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
