"""A job that was killed ends as if it never was: real ranks, real signals."""

from __future__ import annotations

import json
import random
import shutil
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from fault_campaign import Attempt, Toll, hit_one_rank, lines_of, manifest
from handicapped_ranks import be_rank_that_stops, be_rank_with_a_disk_of_its_own, is_stopped, until

from gnnpipe_trainer.checkpoint.folder import found, read_manifest, unfinished

Peace = tuple[dict[str, Any], Path]


def test_ten_kills_at_random_leave_no_trace(peace: Peace, start_ranks: Any, tmp_path: Path) -> None:
    job, reference = peace
    impatient = json.loads(json.dumps(job))
    impatient["spec"]["training"]["stallTimeoutSeconds"] = 4
    dice, toll, outs = random.Random(11), Toll(), ["out0"]
    while toll.hits.total() < 10:
        attempt = start_ranks(impatient, outs[-1])
        hit_one_rank(attempt, dice, toll)
        if attempt.codes == [0, 0]:  # it was done before its hit: the others are for one that begins anew
            outs.append(f"out{len(outs)}")
    assert toll.stayed == []
    assert start_ranks(job, outs[-1]).wait() == [0, 0]
    for out in (tmp_path / name for name in outs):
        assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()
        assert lines_of(out) == lines_of(reference)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", ["saving", "halfway through saving"])
def test_killed_while_history_is_written_or_before_the_rest_is_the_one_before_serves(
    peace: Peace, forked: ForkServerContext, start_ranks: Any, tmp_path: Path, point: str, rank: int
) -> None:
    job, reference = peace
    shorter, out = json.loads(json.dumps(job)), tmp_path / "out"
    shorter["spec"]["training"]["epochs"] = 10  # the last of them is evaluated in either run
    assert start_ranks(shorter).wait() == [0, 0]
    target = partial(be_rank_that_stops, rank, point)
    attempt = Attempt(job, out, tmp_path / "scratch-killed", target).start(forked)
    until(lambda: is_stopped(attempt, rank), attempt)
    attempt.end()
    assert [path.name for path in unfinished(out / "checkpoints")] == ["epoch-000011.new"]
    attempt = start_ranks(job)
    assert attempt.wait() == [0, 0]
    started = json.loads((attempt.scratch / "started.json").read_text())
    assert (started["checkpoint"], len(started["warnings"])) == ("epoch-000009", 1)
    assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()
    assert lines_of(out) == lines_of(reference)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_serves(
    peace: Peace, start_ranks: Any, tmp_path: Path
) -> None:
    job, reference = peace
    out = tmp_path / "out"
    shutil.copytree(reference, out)
    newest, before = found(out / "checkpoints")[:2]
    (newest / "rank0" / "state.float32.bin").write_bytes(b"half")
    attempt = start_ranks(job)
    assert attempt.wait() == [0, 0]
    started = json.loads((attempt.scratch / "started.json").read_text())
    assert started["checkpoint"] == before.name
    assert [str(newest) in warning for warning in started["warnings"]] == [True]
    assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()


def test_a_job_may_go_on_without_sending_its_zeros(peace: Peace, start_ranks: Any, tmp_path: Path) -> None:
    """What a slot had room for is in no checkpoint, and the weights end the same bit for bit."""
    job, reference = peace
    out = tmp_path / "out"
    shutil.copytree(reference, out)
    newest, before = found(out / "checkpoints")[:2]
    shutil.rmtree(newest)
    (out / "model.pt").unlink()
    thrifty = json.loads(json.dumps(job))
    thrifty["spec"]["parallelism"]["wireZeros"] = "skip"
    attempt = start_ranks(thrifty)
    assert attempt.wait() == [0, 0]
    assert json.loads((attempt.scratch / "started.json").read_text())["checkpoint"] == before.name
    assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()


@pytest.mark.parametrize("gradients", ["drop", "last", "average"])
def test_a_job_may_be_taken_up_while_it_warms_up_and_just_when_it_is_warm(
    start_ranks: Any, tmp_path: Path, gradients: str
) -> None:
    job = manifest(epochs=8, evaluateEvery=1)  # so that shorter runs evaluate no others
    job["spec"]["parallelism"]["history"] = {"warmupEpochs": 4, "gradients": gradients}
    assert start_ranks(job, "reference").wait() == [0, 0]
    for done in (2, 4):
        shorter = json.loads(json.dumps(job))
        shorter["spec"]["training"]["epochs"] = done
        assert start_ranks(shorter).wait() == [0, 0]
    assert start_ranks(job).wait() == [0, 0]
    out, reference = tmp_path / "out", tmp_path / "reference"
    assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()
    shares = [line["staleShare"] for line in lines_of(out)]
    assert shares[:4] == [0.0] * 4
    assert min(shares[4:]) > 0.0


def test_a_job_taken_up_in_the_midst_of_its_learning_rate_schedule_goes_on_where_the_curve_was(
    start_ranks: Any, tmp_path: Path
) -> None:
    job = manifest(epochs=8, evaluateEvery=1)
    job["spec"]["training"]["learningRateSchedule"] = {"mode": "cosine", "warmupEpochs": 3}
    job["spec"]["checkpoint"] = {"everyEpochs": 1, "keep": 8}
    reference = tmp_path / "reference"
    assert start_ranks(job, "reference").wait() == [0, 0]
    rates = [line["learningRate"] for line in lines_of(reference)]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert sorted(set(rates[3:]), reverse=True) == rates[3:]
    for done in (2, 5):  # in the warm-up and after it; with fewer epochs instead it would be another curve
        out = tmp_path / f"from-{done}"
        shutil.copytree(reference, out)
        (out / "model.pt").unlink()
        for newer in found(out / "checkpoints")[: 8 - done]:
            shutil.rmtree(newer)
        attempt = start_ranks(job, out.name)
        assert attempt.wait() == [0, 0]
        assert json.loads((attempt.scratch / "started.json").read_text())["epoch"] == done
        assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()
        assert lines_of(out) == lines_of(reference)


def test_asked_to_stop_all_ranks_stop_after_the_same_epoch_with_a_checkpoint(
    peace: Peace, start_ranks: Any, tmp_path: Path
) -> None:
    job, reference = peace
    attempt: Attempt = start_ranks(job)
    attempt.ask_to_stop()
    assert attempt.wait() == [0, 0]
    assert (attempt.scratch / "stopped").exists()
    out = tmp_path / "out"
    assert not (out / "result.json").exists()
    done = len(lines_of(out))
    assert [read_manifest(folder)["epoch"] for folder in found(out / "checkpoints")][:1] == [done - 1][:done]
    assert start_ranks(job).wait() == [0, 0]
    assert (out / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()


def test_a_folder_that_cannot_be_written_costs_the_checkpoints_only(
    peace: Peace, start_ranks: Any, tmp_path: Path
) -> None:
    job, reference = peace
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoints").write_text("a file where a folder should be")
    attempt: Attempt = start_ranks(job)
    assert attempt.wait() == [0, 0]
    log = (attempt.scratch / "log.txt").read_text()
    assert "The checkpoint of epoch 1 could not be written" in log
    assert "Failed so far: 15" in log
    assert "Traceback" not in log
    assert (tmp_path / "out" / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()


def test_without_a_folder_that_all_ranks_share_no_checkpoint_is_tried_and_one_warning_says_so(
    forked: ForkServerContext, tmp_path: Path
) -> None:
    attempt = Attempt(
        manifest(epochs=4), tmp_path / "out", tmp_path / "scratch", be_rank_with_a_disk_of_its_own
    )
    assert attempt.start(forked).wait() == [0, 0]
    log = (attempt.scratch / "log.txt").read_text()
    assert log.count("is not a folder that all ranks share") == 1
    assert "could not be written" not in log
    assert not any(path.name.startswith(("epoch-", ".shared-")) for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"hidden": 32}}, "spec.model.hidden was 16 and is 32"),
        ({"graph": {"vertices": 310}}, "spec.graph.vertices was 300 and is 310"),
    ],
)
def test_checkpoints_of_another_model_or_graph_are_refused_with_what_differs(
    peace: Peace, start_ranks: Any, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    job, reference = peace
    shutil.copytree(reference, tmp_path / "out")
    other = json.loads(json.dumps(job))
    for part, fields in change.items():
        other["spec"][part] |= fields
    attempt: Attempt = start_ranks(other)
    assert attempt.wait() == [2, 2]
    assert said in attempt.sentence(0)
    assert "--fresh" in attempt.sentence(0)
    assert (tmp_path / "out" / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()


def restaged(stages: int, ways: int, chunks: int, epochs: int) -> dict[str, Any]:
    """Without dropout, whose random numbers depend on the cut."""
    job = manifest(stages, ways, epochs=epochs, learningRate=0.005)
    job["spec"]["model"]["dropout"] = 0.0
    job["spec"]["parallelism"]["chunks"] = chunks
    return job


def test_weights_and_optimizer_survive_other_stages_and_ways_to_rounding(
    start_ranks: Any, tmp_path: Path
) -> None:
    """Where every cut is exact (a chunk per way), a job cut anew every four epochs trains as one never cut."""
    assert start_ranks(restaged(1, 1, 1, 16), "never-cut").wait() == [0]
    for stages, ways, epochs in ((2, 1, 4), (3, 1, 8), (1, 1, 12), (1, 2, 16)):
        assert start_ranks(restaged(stages, ways, ways, epochs)).wait() == [0] * (stages * ways)
    losses, smooth = ([line["loss"] for line in lines_of(tmp_path / out)] for out in ("out", "never-cut"))
    assert losses == pytest.approx(smooth, rel=1e-4)


def test_other_stages_and_chunks_go_on_with_history_and_no_jump(start_ranks: Any, tmp_path: Path) -> None:
    assert start_ranks(restaged(2, 1, 4, 12), "whole").wait() == [0, 0]
    smooth = [line["loss"] for line in lines_of(tmp_path / "whole")]
    assert start_ranks(restaged(2, 1, 4, 10)).wait() == [0, 0]
    assert start_ranks(restaged(3, 1, 6, 12)).wait() == [0, 0, 0]
    losses = [line["loss"] for line in lines_of(tmp_path / "out")]
    assert losses[:10] == smooth[:10]
    assert losses[10:] == pytest.approx(smooth[10:], rel=0.01)
