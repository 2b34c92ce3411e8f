"""What a machine must have to run nodes with real containers: asked before anything is built."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .binaries import cache_folder

OS_RELEASE = Path("/etc/os-release")
# An overlay over an overlay is refused by the kernel, so it is tried where containerd will have it: in the
# folder for temporary files.
OVERLAY = """cd $(mktemp -d) && mkdir lower upper work all || exit 1
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay all; code=$?
umount all; rm -r "$PWD"; exit $code"""
TRIALS = {
    "network, mount and PID namespaces": ["unshare", "--net", "--mount", "--pid", "--fork", "true"],
    "overlay mounts in the folder for temporary files": ["unshare", "--mount", "sh", "-c", OVERLAY],
    "control groups": [
        "sh",
        "-c",
        "d=/sys/fs/cgroup; [ -d $d/cpu ] && d=$d/cpu; mkdir $d/gnnpipe-t && rmdir $d/gnnpipe-t",
    ],
}
DISK_GIB = (
    20  # Kubernetes' sources while they are built, both images with their layers, and each twice on the nodes
)


def lacks(os_release: Path = OS_RELEASE) -> Iterator[str]:
    """A sentence for each thing that this machine cannot give."""
    release = os_release.read_text() if os_release.exists() else ""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        yield f"it is {platform.system()} on {platform.machine()}, not Linux on x86_64"
    if "ID=debian" not in release or 'VERSION_ID="12"' not in release:
        yield "it is not Debian 12, whose packages Kubernetes and the images are made of"
    if os.geteuid() != 0:
        yield "you are not root, who alone may make containers and networks"
        return  # each trial below would fail for this reason
    for what, command in TRIALS.items():
        said = refusal(command)
        if said is not None:
            yield f"{what} cannot be made: {said}"
    folder = next(each for each in (cache_folder(), *cache_folder().parents) if each.exists())
    free = shutil.disk_usage(folder).free / 2**30
    if free < DISK_GIB:
        yield f"{free:.0f} GiB are free in {folder}, {DISK_GIB} are needed (GNNPIPE_CLUSTER_CACHE names another folder)"


def refusal(command: list[str]) -> str | None:
    """What the command says when it fails; None when it works."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
