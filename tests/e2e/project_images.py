"""The project's two images, built from this checkout: `make e2e` runs this first, so that the wait is seen."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.errors import NoCluster
from harness.images import project_image

PROJECT = Path(__file__).parents[2]
TAG = "e2e"
NAMES = ("operator", "trainer")


def repository(name: str) -> str:
    return f"localhost/gnnpipe-{name}"


def build() -> list[Path]:
    """Archives of both images; at once where nothing changed since the last time."""
    return [project_image(PROJECT, name, f"{repository(name)}:{TAG}") for name in NAMES]


if __name__ == "__main__":
    try:
        build()
    except NoCluster as error:
        sys.exit(f"make e2e needs root on Debian 12 (x86_64): {error}")
