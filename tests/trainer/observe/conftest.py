from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_once import made_once

from gnnpipe_trainer.cli import main

EPOCHS = 6


@dataclass(frozen=True)
class FinishedRun:
    manifest: Path
    out: Path

    @property
    def result(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return content


def small_job(**spec: dict[str, Any]) -> dict[str, Any]:
    """Two stages of a deep model on a graph that trains in a moment."""
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "small"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 600, "averageDegree": 8, "classes": 4},
            "model": {"kind": "gcnii", "layers": 4, "hidden": 16},
            "training": {"epochs": EPOCHS, "learningRate": 0.01, "evaluateEvery": 2, "device": "cpu"},
            "parallelism": {"stages": 2, "chunks": 4},
            **spec,
        },
    }


@pytest.fixture
def job() -> dict[str, Any]:
    return small_job()


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A job that `gnnpipe run --profile` has trained in two processes."""
    folder = made_once(tmp_path_factory, "finished", _run)
    return FinishedRun(folder / "small.yaml", folder / "out")


def _run(folder: Path) -> None:
    manifest = folder / "small.yaml"
    manifest.write_text(yaml.safe_dump(small_job()))
    code = main(["run", str(manifest), "--out", str(folder / "out"), "--profile"])
    assert code == 0, (folder / "out" / "train.log").read_text()
