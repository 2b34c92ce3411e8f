"""Averaged weights are what a run evaluates and keeps, training does not notice, and a resume changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_campaign import lines_of, manifest
from torch import Tensor

from gnnpipe_trainer.checkpoint.folder import Checkpoint, folder_of, found, read_manifest
from gnnpipe_trainer.checkpoint.parts import load_tensors
from gnnpipe_trainer.cli import main

Weights = dict[str, Tensor]

EPOCHS, DECAY = 10, 0.6
EMA, TAIL, NONE = {"mode": "ema", "decay": DECAY}, {"mode": "tail"}, {"mode": "none"}


def averaging(how: dict[str, Any], stages: int = 2, ways: int = 1, epochs: int = EPOCHS) -> dict[str, Any]:
    """A job that is evaluated after each epoch, and keeps the checkpoint of each."""
    job = manifest(stages, ways, epochs=epochs, evaluateEvery=1, averaging=how)
    job["spec"]["checkpoint"] = {"everyEpochs": 1, "keep": EPOCHS}
    return job


def saved(out: Path, epoch: int, kind: str) -> Weights:
    """What the checkpoint after an epoch has of one kind, by name."""
    folder = folder_of(out / "checkpoints", epoch)
    there = Checkpoint(folder, read_manifest(folder))
    tensors = load_tensors(there, lambda name: name.startswith(f"{kind}."))
    return {name.removeprefix(f"{kind}."): tensor for name, tensor in tensors.items()}


def ema(t: int) -> float:
    """What the old average weighs after epoch t."""
    return min(DECAY, t / (t + 1))


def averaged(
    courses: list[Weights], first: int = 0, start: Weights | None = None, rule: Callable[[int], float] = ema
) -> Weights:
    """The formula in plain numbers."""
    average = {} if start is None else {name: tensor.double() for name, tensor in start.items()}
    for t, weights in enumerate(courses, first):
        old = rule(t)
        for name, tensor in weights.items():
            before = average.get(name, torch.zeros_like(tensor).double())
            average[name] = old * before + (1 - old) * tensor.double()
    return average


def assert_same(found: Weights, wanted: Weights) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.double(), wanted[name], atol=2e-6, rtol=1e-5)


def result_of(out: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


@pytest.mark.parametrize(("stages", "ways"), [(1, 1), (2, 1), (2, 2)])
def test_model_pt_is_the_average_and_training_is_the_same_without_it(
    start_ranks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], stages: int, ways: int
) -> None:
    world, last, out = [0] * (stages * ways), tmp_path / "last", tmp_path / "averaged"
    assert start_ranks(averaging(NONE, stages, ways), "last").wait() == world
    attempt = start_ranks(averaging(EMA, stages, ways), "averaged")
    assert attempt.wait() == world
    course = [saved(last, epoch, "model") for epoch in range(EPOCHS)]
    result = result_of(out)
    best = result["bestEpoch"]
    assert best > 0  # or the average would be those weights alone
    assert_same(torch.load(out / "model.pt", weights_only=True), averaged(course[: best + 1]))
    assert_same(saved(out, EPOCHS - 1, "average.ema"), averaged(course))
    assert (result["weightAveraging"], result_of(last)["weightAveraging"]) == ("ema", "none")

    ours, theirs = lines_of(out), lines_of(last)
    evaluated = [[line.pop("accuracy") for line in lines] for lines in (ours, theirs)]
    assert ours == theirs
    assert evaluated[0] != evaluated[1]
    written = str(attempt.scratch / "manifest.json")
    assert main(["evaluate", written, "--model", str(out / "model.pt")]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == result["accuracy"]


@pytest.mark.parametrize(("stages", "ways"), [(2, 1), (2, 2)])
def test_of_two_tails_the_one_that_validates_better_is_kept(
    start_ranks: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], stages: int, ways: int
) -> None:
    out = tmp_path / "tail"
    attempt = start_ranks(averaging(TAIL, stages, ways, epochs=EPOCHS), "tail")
    assert attempt.wait() == [0] * (stages * ways)
    course, result = [saved(out, epoch, "model") for epoch in range(EPOCHS)], result_of(out)
    tails = {"short": 16, "long": 4}
    for name, parts in tails.items():
        wanted = averaged(course, rule=lambda t, parts=parts: t / (t + parts))
        assert_same(saved(out, EPOCHS - 1, f"average.{name}"), wanted)

    written, found = str(attempt.scratch / "manifest.json"), {}
    for name in tails:
        torch.save(saved(out, result["bestEpoch"], f"average.{name}"), tmp_path / f"{name}.pt")
        assert main(["evaluate", written, "--model", str(tmp_path / f"{name}.pt")]) == 0
        found[name] = json.loads(capsys.readouterr().out)["accuracy"]
    better = max(tails, key=lambda name: found[name]["val"])
    assert (result["accuracy"], result["weightAveraging"]) == (found[better], "tail")
    kept = torch.load(out / "model.pt", weights_only=True)
    assert all(
        torch.equal(kept[name], tensor) for name, tensor in torch.load(tmp_path / f"{better}.pt").items()
    )
    assert lines_of(out)[result["bestEpoch"]]["accuracy"] == found[better]


@pytest.mark.parametrize("how", [EMA, TAIL], ids=["ema", "tail"])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_job_taken_up_again_ends_with_the_same_average_bit_for_bit(
    start_ranks: Any, tmp_path: Path, stages: int, how: dict[str, Any]
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert start_ranks(averaging(how, stages), "whole").wait() == [0] * stages
    for epochs in (3, 4, EPOCHS):
        assert start_ranks(averaging(how, stages, epochs=epochs)).wait() == [0] * stages
    assert (out / "model.pt").read_bytes() == (whole / "model.pt").read_bytes()
    assert lines_of(out) == lines_of(whole)
    again, wanted = (saved(folder, EPOCHS - 1, "average") for folder in (out, whole))
    assert again.keys() == wanted.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in wanted.items())
    assert {name.split(".")[0] for name in wanted} == ({"ema"} if how is EMA else {"short", "long"})


def test_the_average_survives_other_stages(start_ranks: Any, tmp_path: Path) -> None:
    for stages, epochs in ((2, 4), (3, 7), (1, EPOCHS)):
        job = averaging(EMA, stages, epochs=epochs)
        assert start_ranks(job).wait() == [0] * stages
    out = tmp_path / "out"
    course = [saved(out, epoch, "model") for epoch in range(EPOCHS)]
    assert_same(saved(out, EPOCHS - 1, "average.ema"), averaged(course))


def test_a_checkpoint_without_an_average_serves_one_that_begins_with_its_weights(
    start_ranks: Any, tmp_path: Path
) -> None:
    out, done = tmp_path / "out", 6
    assert start_ranks(averaging(NONE, epochs=done)).wait() == [0, 0]
    assert saved(out, done - 1, "average.ema") == {}
    assert start_ranks(averaging(EMA)).wait() == [0, 0]
    course = [saved(out, epoch, "model") for epoch in range(done - 1, EPOCHS)]
    assert_same(saved(out, EPOCHS - 1, "average.ema"), averaged(course[1:], done, start=course[0]))


def test_a_job_that_averages_no_more_goes_on_as_one_that_never_did(start_ranks: Any, tmp_path: Path) -> None:
    out, never = tmp_path / "out", tmp_path / "never"
    assert start_ranks(averaging(NONE), "never").wait() == [0, 0]
    assert start_ranks(averaging(EMA, epochs=6)).wait() == [0, 0]
    assert start_ranks(averaging(NONE)).wait() == [0, 0]
    assert result_of(out)["weightAveraging"] == "none"
    assert lines_of(out)[6:] == lines_of(never)[6:]  # accuracies and all
    assert saved(out, EPOCHS - 1, "average.ema") == {}
    assert len(found(out / "checkpoints")) == EPOCHS


@pytest.mark.parametrize(
    ("learning_rate", "every", "kept"),
    [(2.0**4, 1, ["epoch-000000"]), (2.0**100, 2 * EPOCHS, [])],  # halved as often as need be, it is exact
    ids=["to a checkpoint", "to the start, with no number left"],
)
def test_a_rollback_takes_the_average_back_too(
    start_ranks: Any, tmp_path: Path, learning_rate: float, every: int, kept: list[str]
) -> None:
    out, calm = tmp_path / "out", tmp_path / "calm"
    job = averaging({"mode": "ema", "decay": 0.99}, stages=1, epochs=2 * EPOCHS)
    job["spec"]["model"] |= {"kind": "gcn", "layers": 2, "dropout": 0.0}
    job["spec"]["checkpoint"] = {"everyEpochs": every, "keep": 2 * EPOCHS}
    job["spec"]["training"] |= {"optimizer": "sgd", "learningRate": learning_rate}
    job["spec"]["training"]["divergence"] = {"action": "rollback", "maxRollbacks": 120}
    assert start_ranks(job).wait() == [0]
    told = [line["warning"] for line in lines_of(out) if "warning" in line][-1]
    for (
        name
    ) in kept:  # where it went back to: from there on with what it went on with, it is never off the way
        shutil.copytree(out / "checkpoints" / name, calm / "checkpoints" / name)
    job["spec"]["training"]["learningRate"] = float(told.split("learning rate ")[1])
    assert start_ranks(job, "calm").wait() == [0]
    wanted = saved(calm, 2 * EPOCHS - 1, "average.ema")
    assert all(torch.isfinite(tensor).all() for tensor in wanted.values())
    for name, tensor in saved(out, 2 * EPOCHS - 1, "average.ema").items():
        assert torch.equal(tensor, wanted[name])
    assert (out / "model.pt").read_bytes() == (calm / "model.pt").read_bytes()
