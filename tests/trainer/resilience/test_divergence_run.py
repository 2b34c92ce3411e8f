"""Training that diverges ends with a sentence, or goes back and learns after all: real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_campaign import Attempt, lines_of, manifest

from gnnpipe_trainer.checkpoint.folder import unfinished

HOPELESS = 1e30  # a learning rate that no halving saves
TOO_HIGH = 30.0  # it takes two rollbacks


def diverging(learning_rate: float, epochs: int = 24, **divergence: Any) -> dict[str, Any]:
    job = manifest(epochs=epochs, learningRate=learning_rate, optimizer="sgd", divergence=divergence)
    job["spec"]["model"] |= {"kind": "gcn", "layers": 2, "dropout": 0.0}
    job["spec"]["parallelism"]["history"] = {}
    return job


def test_a_loss_that_is_no_number_ends_the_job_for_good(start_ranks: Any, tmp_path: Path) -> None:
    attempt: Attempt = start_ranks(diverging(HOPELESS))
    assert attempt.wait() == [2, 2]
    for rank in (0, 1):
        assert "training diverged: the loss of epoch" in attempt.sentence(rank)
        assert "spec.training.learningRate (1e+30)" in attempt.sentence(rank)
    assert unfinished(tmp_path / "out" / "checkpoints") == []  # what was begun is not kept


def test_after_as_many_rollbacks_as_allowed_the_job_fails(start_ranks: Any) -> None:
    attempt: Attempt = start_ranks(diverging(HOPELESS, action="rollback", maxRollbacks=2))
    assert attempt.wait() == [2, 2]
    assert "after 2 rollbacks" in attempt.sentence(0)


def test_training_goes_back_until_it_learns_and_a_resume_changes_nothing(
    start_ranks: Any, tmp_path: Path
) -> None:
    def job(epochs: int) -> dict[str, Any]:
        made = diverging(TOO_HIGH, epochs, action="rollback", maxRollbacks=6)
        made["spec"]["training"]["learningRateSchedule"] = {"mode": "step", "every": 8, "factor": 0.8}
        return made

    assert start_ranks(job(20), "whole").wait() == [0, 0]
    whole = lines_of(tmp_path / "whole")
    assert [line["epoch"] for line in whole] == list(range(20))
    assert whole[-1]["loss"] < 0.1 * whole[0]["loss"]
    told = [line["warning"] for line in whole if "warning" in line]
    assert "It goes on from epoch" in told[-1]
    assert not any("was not finished" in warning for warning in told)
    assert "with learning rate 7.5, history.decay 0.975" in told[-1]
    since = max(line["epoch"] for line in whole if "warning" in line)
    rates = {line["epoch"]: line["learningRate"] for line in whole[since:]}
    assert rates == pytest.approx({epoch: 7.5 * 0.8 ** (epoch // 8) for epoch in range(since, 20)})
    assert start_ranks(job(12)).wait() == [0, 0]
    assert start_ranks(job(20)).wait() == [0, 0]
    assert (tmp_path / "out" / "model.pt").read_bytes() == (tmp_path / "whole" / "model.pt").read_bytes()
    for field in ("loss", "learningRate"):
        assert [line[field] for line in lines_of(tmp_path / "out")] == [line[field] for line in whole]


def test_a_checkpoint_that_its_last_step_has_spoilt_is_not_gone_back_to_again(
    start_ranks: Any, tmp_path: Path
) -> None:
    job = diverging(100.0, 30, action="rollback", maxRollbacks=6)
    job["spec"]["training"]["learningRateSchedule"] = {"warmupEpochs": 6}  # the first steps are still good
    assert start_ranks(job).wait() == [0, 0]
    lines = lines_of(tmp_path / "out")
    assert "It goes on from epoch" in "".join(line.get("warning", "") for line in lines)
    assert lines[-1]["loss"] < 0.1 * lines[0]["loss"]
