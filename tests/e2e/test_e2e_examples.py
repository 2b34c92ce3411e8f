"""The examples on a real cluster: they succeed, and what they learn is bit for bit what a laptop learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs import Jobs
from local_runs import Trained, assert_identical, run_locally

Example = Callable[..., dict[str, Any]]
LIFE = [("Normal", "Created"), ("Normal", "Running"), ("Normal", "Succeeded")]


def test_a_pipeline_of_two_learns_what_a_laptop_learns(jobs: Jobs, example: Example, tmp_path: Path) -> None:
    manifest = example("pipeline")
    here = run_locally(manifest, tmp_path / "here")
    name = jobs.apply(manifest)
    status = jobs.until_phase(name, "Succeeded", within_seconds=200)
    assert_identical(Trained(jobs.out(name)), here)
    assert status["accuracy"] == here.result["accuracy"]
    assert (status["epoch"], status["restarts"]) == (40, 0)
    assert jobs.events(name) == LIFE
    row = jobs.row(name)
    assert (row["PHASE"], row["STAGES"], row["RESTARTS"]) == ("Succeeded", "2", "0")
