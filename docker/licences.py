"""Write docs/licences.md: every package that the images bring along, with its licence, and refuse unwelcome ones.

Reads the metadata of what is installed beside this interpreter. Run it after a change of constraints.txt.
"""

from __future__ import annotations

import logging
import re
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirements import requirements
from sbom import licence

log = logging.getLogger("licences")
ROOT = Path(__file__).parents[1]
IMAGES = ("operator", "trainer")
PAGE = ROOT / "docs/licences.md"

# Those that let anybody ship the images, open or not. MPL covers changed files of the package itself only.
WELCOME = frozenset(
    {
        *("0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD", "BSD-2-Clause", "BSD-3-Clause"),
        *("BSL-1.0", "CC0-1.0", "ISC", "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"),
    }
)
# What packages without an SPDX expression call them.
SPDX = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
HEAD = """# Licences of what the images bring along

<!-- Made by `python docker/licences.py` from the metadata of the installed packages: do not edit. -->

GNNPipe itself is under the [Apache License 2.0](../LICENSE). The base image has its own packages and licences. With
torch from an index with CUDA, the trainer's image also holds NVIDIA's libraries (`nvidia-*`), under NVIDIA's terms;
the list below is that of torch for CPU. Every image holds its own list as `/app/sbom.cdx.json`.

| package | version | licence | in the image of |
|---|---|---|---|
"""


def spdx(package: Distribution) -> str:
    said = licence(package)
    return SPDX.get(said, said)


def unwelcome(expression: str) -> list[str]:
    """The parts of an SPDX expression that are not welcome; of a choice one welcome part is enough."""
    every = [part.strip("() ") for part in re.split(r" AND ", expression)]
    return [part for part in every if not WELCOME & {choice.strip("() ") for choice in part.split(" OR ")}]


def needed(extra: str) -> set[str]:
    """Canonical names of all packages that `pip install gnnpipe[extra]` brings, but for gnnpipe itself."""
    found: set[str] = set()
    todo = [Requirement(line) for line in requirements(ROOT / "pyproject.toml", extra)]
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found.add(name)
        for line in distribution(name).requires or []:
            further = Requirement(line)
            given = wanted.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": each}) for each in given):
                todo.append(further)
    return found


def page() -> str:
    images = {image: needed(image) for image in IMAGES}
    rows = []
    for name in sorted(set().union(*images.values())):
        package = distribution(name)
        version = package.version.partition("+")[0]
        users = ", ".join(image for image in IMAGES if name in images[image])
        rows.append(f"| {name} | {version} | {spdx(package)} | {users} |\n")
    return HEAD + "".join(rows)


def refused() -> list[str]:
    """A sentence for each package whose licence is not welcome."""
    names = sorted(set().union(*(needed(image) for image in IMAGES)))
    found = {name: unwelcome(spdx(distribution(name))) for name in names}
    return [
        f"{name}: {', '.join(parts)} is not among the welcome licences"
        for name, parts in found.items()
        if parts
    ]


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    PAGE.write_text(page())
    for sentence in refused():
        log.error(sentence)
    sys.exit(bool(refused()))
