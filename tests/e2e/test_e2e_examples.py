"""The examples on a real cluster: they succeed, and what they learn is bit for bit what a laptop learns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import GRAPHS, Jobs
from local_runs import Trained, assert_identical, run_locally
from project_images import PROJECT

Example = Callable[..., dict[str, Any]]
FOUR_DIGITS = 5e-4  # what the status shows of a figure
LIFE = [("Normal", "Created"), ("Normal", "Running"), ("Normal", "Succeeded")]


def test_a_pipeline_of_two_learns_what_a_laptop_learns(jobs: Jobs, example: Example, tmp_path: Path) -> None:
    manifest = example("pipeline")
    here = run_locally(manifest, tmp_path / "here")
    name = jobs.apply(manifest)
    status = jobs.until_phase(name, "Succeeded", within_seconds=400)
    assert_identical(Trained(jobs.out(name)), here)
    assert status["accuracy"] == pytest.approx(here.result["accuracy"], rel=FOUR_DIGITS)
    assert jobs.events(name) == LIFE
    row = jobs.row(name)
    assert [row[column] for column in ("PHASE", "STAGES", "EPOCH", "RESTARTS")] == [
        "Succeeded",
        "2",
        "40",
        "0",
    ]
    assert float(row["LOSS"]) == pytest.approx(here.result["loss"], rel=FOUR_DIGITS)
    assert float(row["TEST"]) == pytest.approx(here.result["accuracy"]["test"], rel=FOUR_DIGITS)
    assert sorted(jobs.pods(name)) == [f"{name}-s0-a0", f"{name}-s1-a0"]  # they stay, with their logs


def test_auto_is_planned_in_a_pod_that_sees_the_graph_and_then_trains_with_its_numbers(
    jobs: Jobs, example: Example, tmp_path: Path
) -> None:
    manifest = example("auto", epochs=10)
    name = jobs.apply(manifest)
    status = jobs.until_phase(name, "Succeeded", within_seconds=400)
    assert jobs.events(name) == [("Normal", "Planned"), *LIFE]
    plan = status["plan"]
    assert "on at most 2 ranks" in plan["reason"]
    manifest["spec"]["parallelism"] = {number: plan[number] for number in ("stages", "ways", "chunks")}
    assert_identical(Trained(jobs.out(name)), run_locally(manifest, tmp_path / "here"))
    kept = {pod for pod, about in jobs.pods(name).items() if "deletionTimestamp" not in about["metadata"]}
    assert kept == {f"{name}-s{stage}-a0" for stage in range(plan["stages"])}


def test_a_hybrid_of_two_by_two_asks_for_four_gpus(jobs: Jobs, example: Example, tmp_path: Path) -> None:
    manifest = example("hybrid", device="auto", epochs=20)
    here = run_locally(manifest, tmp_path / "here")
    name = jobs.apply(manifest)
    jobs.until_phase(name, "Succeeded", within_seconds=400)
    assert_identical(Trained(jobs.out(name)), here)
    containers = [pod["spec"]["containers"][0] for pod in jobs.pods(name).values()]
    assert [each["resources"]["limits"]["nvidia.com/gpu"] for each in containers] == ["2", "2"]


def test_more_gpus_than_a_node_has_are_waited_for_and_told(jobs: Jobs, example: Example) -> None:
    manifest = example("hybrid", device="auto")
    manifest["spec"]["parallelism"] = {"stages": 2, "ways": 9, "chunks": 18}
    name = jobs.apply(manifest)
    jobs.until("the reason is told", lambda: "nvidia.com/gpu" in (jobs.status(name).get("message") or ""), 90)
    assert jobs.status(name)["phase"] == "Pending"
    assert jobs.condition(name, "Running")["reason"] == "Unschedulable"


@pytest.fixture
def my_model(jobs: Jobs) -> Iterator[None]:
    """The person's own code as a ConfigMap, made by the command that the example names."""
    jobs.kubectl("create", "configmap", "my-model", f"--from-file={PROJECT}/examples/my_model.py")
    yield
    jobs.kubectl("delete", "configmap", "my-model")


@pytest.mark.usefixtures("my_model")
def test_a_model_of_ones_own_comes_from_a_config_map(jobs: Jobs, example: Example, tmp_path: Path) -> None:
    manifest = example("custom-model", epochs=20)
    here = run_locally(manifest, tmp_path / "here", beside=PROJECT / "examples")
    name = jobs.apply(manifest)
    jobs.until_phase(name, "Succeeded", within_seconds=400)
    assert_identical(Trained(jobs.out(name)), here)


def test_a_graph_and_its_checkpoints_live_on_volumes(jobs: Jobs, example: Example, tmp_path: Path) -> None:
    """examples/squirrel.yaml: four stages, a public file format, one volume to read and one to write."""
    write_graph(jobs.volumes[GRAPHS] / "squirrel.npz")
    manifest = example("squirrel", epochs=10, evaluateEvery=5, earlyStopping=None)
    manifest["spec"]["checkpoint"] |= {"everyEpochs": 4, "keep": 2}
    manifest["spec"]["worker"] = {}  # eight cores and 32 GiB are not to be had here
    on_a_laptop = copy.deepcopy(manifest)
    on_a_laptop["spec"]["graph"] |= {"path": str(jobs.volumes[GRAPHS] / "squirrel.npz"), "volume": None}
    here = run_locally(on_a_laptop, tmp_path / "here")
    name = jobs.apply(manifest)
    jobs.until_phase(name, "Succeeded", within_seconds=400)
    assert_identical(Trained(jobs.out(name)), here)
    kept = sorted(path.name for path in jobs.out(name).glob("checkpoints/epoch-*"))
    assert kept == ["epoch-000007", "epoch-000009"]


def write_graph(path: Path) -> None:
    """A small graph in the names and shapes of the public benchmark files."""
    dice = np.random.default_rng(0)
    labels = dice.integers(0, 5, 400)
    edges = dice.integers(0, 400, (6000, 2))
    alike = labels[edges[:, 0]] == labels[edges[:, 1]]
    edges = np.concatenate([edges[alike], edges[~alike][:300]])
    features = np.eye(5, dtype=np.float32)[labels] + dice.normal(0, 1, (400, 5)).astype(np.float32)
    turn = dice.permutation(400)
    masks = {}
    for split, (start, end) in {"train": (0, 200), "val": (200, 300), "test": (300, 400)}.items():
        masks[f"{split}_masks"] = np.isin(np.arange(400), turn[start:end])[None]
    np.savez(path, node_features=features, node_labels=labels, edges=edges, **masks)
