"""A small valid manifest, and a way to change one field of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

Manifest = dict[str, Any]

_VALID: Manifest = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "metadata": {"name": "squirrel"},
    "spec": {"graph": {"source": "synthetic"}, "model": {"kind": "gcnii", "layers": 8}},
}


@pytest.fixture
def manifest() -> Manifest:
    return copy.deepcopy(_VALID)


@pytest.fixture
def manifest_with(manifest: Manifest) -> Callable[[dict[str, Any]], Manifest]:
    """The valid manifest with fields set by their paths; the value `...` takes a field out."""

    def changed(changes: dict[str, Any]) -> Manifest:
        for path, value in changes.items():
            *sections, last = path.split(".")
            here = manifest
            for section in sections:
                here = here.setdefault(section, {})
            if value is ...:
                del here[last]
            else:
                here[last] = copy.deepcopy(value)
        return manifest

    return changed
