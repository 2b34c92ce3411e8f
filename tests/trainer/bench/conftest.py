"""A job so small that processes take longer to start than to train."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import load_job

TINY = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "metadata": {"name": "tiny"},
    "spec": {
        "graph": {"source": "synthetic", "vertices": 400, "averageDegree": 6, "classes": 3, "features": 5},
        "model": {"kind": "gcn", "layers": 4, "hidden": 8, "dropout": 0},
        "training": {"device": "cpu"},
    },
}


@pytest.fixture(autouse=True)
def _cache_of_this_run(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("GNNPIPE_CACHE", str(tmp_path_factory.getbasetemp() / "gnnpipe-cache"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture
def job(manifest: Path) -> GNNPipeJob:
    return load_job(manifest)


@pytest.fixture
def sage_job(manifest: Path) -> GNNPipeJob:
    return load_job(manifest, ["spec.model.kind=sage"])
