"""A container image written by hand: one layer, one config, one manifest, in docker-archive format."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from .runtime import Runtime

PAUSE_IMAGE = "localhost/gnnpipe-pause:1"
BUSYBOX_IMAGE = "localhost/gnnpipe-busybox:1"


def write_busybox_archive(runtime: Runtime, path: Path) -> Path:
    """busybox under two names: a tiny image for tests, and the pause container that holds a pod's network."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        for folder in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            files.addfile(entry)
        program = tarfile.TarInfo("bin/busybox")
        program.mode, program.size = 0o755, runtime.busybox.stat().st_size
        with runtime.busybox.open("rb") as content:
            files.addfile(program, content)
        for applet in ("sh", "sleep", "cat", "echo", "nslookup", "wget", "nc", "httpd", "id", "ls", "tail"):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            files.addfile(link)
    return _write_archive(path, [PAUSE_IMAGE, BUSYBOX_IMAGE], layer.getvalue())


def _write_archive(path: Path, tags: list[str], layer: bytes) -> Path:
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/tail", "-f", "/dev/null"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    encoded = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": tags, "Layers": ["layer.tar"]}]
    parts = {config_name: encoded, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(path, "w") as archive:
        for name, content in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path
