from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job


@pytest.fixture
def manifest() -> Callable[..., dict[str, Any]]:
    def make(
        kind: str = "gcn",
        layers: int = 4,
        stages: int = 2,
        ways: int = 1,
        chunks: int | None = None,
        **spec: Any,
    ) -> dict[str, Any]:
        graph = {"source": "synthetic", "vertices": 150, "averageDegree": 6, "classes": 4, "features": 10}
        return {
            "apiVersion": "gnnpipe.io/v1alpha1",
            "kind": "GNNPipeJob",
            "metadata": {"name": "planned"},
            "spec": {
                "graph": graph | spec.get("graph", {}),
                "model": {"kind": kind, "layers": layers, "hidden": 8} | spec.get("model", {}),
                "training": {"epochs": 20, "device": "cpu"} | spec.get("training", {}),
                "parallelism": {"stages": stages, "ways": ways, "chunks": chunks}
                | spec.get("parallelism", {}),
            },
        }

    return make


@pytest.fixture
def job(manifest: Callable[..., dict[str, Any]]) -> Callable[..., GNNPipeJob]:
    return lambda *positional, **named: parse_job(manifest(*positional, **named))
