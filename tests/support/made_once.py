"""What takes long to make and is only read: made by one of pytest's workers, for all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

MADE = "made"  # a file beside it


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills; whoever comes meanwhile waits."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"shared-{name}"
    with FileLock(f"{folder}.lock"):
        if not (folder / MADE).exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / MADE).touch()
    return folder
