"""A small job that lasts long enough to be disturbed, and the weights that it must end with all the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import CLAIM, Jobs
from local_runs import Trained, assert_identical, run_locally

NAME = "steady"


@dataclass(frozen=True)
class Steady:
    """`in_peace` is the run of the same manifest that nobody disturbed, on this machine."""

    manifest: dict[str, Any]
    in_peace: Trained

    def with_template(self, **pod: Any) -> dict[str, Any]:
        """The same job in pods with these fields: where they run has no say in what they learn."""
        manifest = copy.deepcopy(self.manifest)
        manifest["spec"]["worker"] = {"template": {"spec": pod}}
        return manifest

    def assert_ends_as_in_peace(self, jobs: Jobs, *, restarts: int, failures: int = 0) -> None:
        """`failures`: how many of the restarts were counted against backoffLimit."""
        status = jobs.until_phase(NAME, "Succeeded", within_seconds=400)
        assert status["restarts"] == restarts
        assert status["failures"] == failures
        assert_identical(Trained(jobs.out(NAME)), self.in_peace)


def run_in_peace(folder: Path) -> Steady:
    """At once where the folder holds that run already."""
    manifest = steady_manifest()
    done = Trained(folder / "out")
    return Steady(manifest, done if done.is_whole else run_locally(manifest, folder))


def steady_manifest() -> dict[str, Any]:
    """It has everything whose state could get lost: dropout, history, an optimizer with moments, a best epoch."""
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": NAME},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 600, "averageDegree": 8, "classes": 4},
            "model": {"kind": "gcnii", "layers": 6, "hidden": 16, "dropout": 0.5},
            "training": {"epochs": 200, "evaluateEvery": 20, "device": "cpu"},
            "parallelism": {"stages": 2, "chunks": 4},
            "checkpoint": {
                "everyEpochs": 5,
                "keep": 2,
                "volume": {"persistentVolumeClaim": {"claimName": CLAIM}},
            },
        },
    }
