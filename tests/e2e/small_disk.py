"""A disk that is soon full: memory mounted over a folder, as one node sees it."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness.node import Node

FILLER = "filler"


@dataclass(frozen=True)
class SmallDisk:
    """A node has mounts of its own, so what is done to the disk is done from inside."""

    node: Node
    folder: Path
    megabytes: int

    def mount(self) -> None:
        self._inside(f"mount -t tmpfs -o size={self.megabytes}m,mode=1777 tmpfs {self.folder}")

    def unmount(self) -> None:
        self._inside(f"umount {self.folder}")

    def fill(self) -> None:
        """To the last byte: writes until there is no room."""
        self._inside(f"cat /dev/zero > {self.folder}/{FILLER} 2>/dev/null || true")

    def free(self) -> None:
        self._inside(f"rm {self.folder}/{FILLER}")

    def lists(self, pattern: str) -> list[str]:
        return self._inside(f"ls -d {self.folder}/{pattern} 2>/dev/null || true").split()

    def copy(self, name: str, to: Path) -> None:
        """What lies in the folder `name` of the disk, to where this machine sees it."""
        to.mkdir(parents=True)
        archive = subprocess.run(
            [*self._enter, "tar", "-C", f"{self.folder}/{name}", "-c", "."], capture_output=True, check=True
        )
        subprocess.run(["tar", "-C", str(to), "-x"], input=archive.stdout, check=True)

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self.node.processes[0].pid}", "--mount", "--"]

    def _inside(self, script: str) -> str:
        done = subprocess.run([*self._enter, "sh", "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.quote(script)} on {self.node.name}: {done.stderr}"
        return done.stdout
