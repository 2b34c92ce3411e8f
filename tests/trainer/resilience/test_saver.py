"""One checkpoint after another: begun between forward and backward, finished after the epoch, or dropped."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from rank_tasks import LentHistory, lend_histories

from gnnpipe_api.job import CheckpointSpec
from gnnpipe_trainer.checkpoint.folder import found, verified
from gnnpipe_trainer.checkpoint.loan import Loan
from gnnpipe_trainer.checkpoint.packed import Copies, in_place
from gnnpipe_trainer.checkpoint.parts import load_tensors
from gnnpipe_trainer.checkpoint.saver import Saver
from gnnpipe_trainer.pages import on_pages
from gnnpipe_trainer.pipeline.topology import Topology

WEIGHT = torch.arange(6.0)


def saver_in(folder: Path) -> Saver:
    return Saver(folder / "checkpoints", CheckpointSpec(), Topology(1, 1, 0), dist.HashStore())


def lent(history: torch.Tensor) -> Loan:
    packed = in_place({"history.0.way0": history})
    assert packed is not None
    return Loan(packed)


def finish(saver: Saver, epoch: int) -> None:
    saver.finish(Copies().fill({"model.weight": WEIGHT}), {"epoch": epoch})


def test_a_checkpoint_has_history_as_it_was_lent_though_training_goes_on(tmp_path: Path) -> None:
    saver, history = saver_in(tmp_path), on_pages(5000, torch.float32).normal_()
    before = history.clone()
    saver.begin(3, lent(history))
    assert not saver.idle
    finish(saver, 3)
    saver.give_back()
    history.zero_()
    saver.wait()
    assert (saver.idle, saver.counts.saved, saver.counts.failed) == (True, 1, 0)
    loaded = load_tensors(verified(found(tmp_path / "checkpoints")[0]), lambda name: True)
    assert torch.equal(loaded["history.0.way0"], before)
    assert torch.equal(loaded["model.weight"], WEIGHT)


def test_one_that_is_not_wanted_after_all_leaves_nothing_behind_and_the_next_is_whole(tmp_path: Path) -> None:
    saver, history = saver_in(tmp_path), on_pages(5000, torch.float32)
    for drop in (saver.drop, saver.wait):
        saver.begin(1, lent(history))
        drop()
        saver.wait()
        saver.give_back()
        assert list((tmp_path / "checkpoints").iterdir()) == []
    assert (saver.counts.saved, saver.counts.failed) == (0, 0)
    saver.begin(1, lent(history))
    finish(saver, 1)
    saver.wait()
    assert verified(found(tmp_path / "checkpoints")[0]).epoch == 1


def test_of_two_ranks_that_drop_one_the_last_takes_the_folder_with_it(tmp_path: Path) -> None:
    store = dist.HashStore()
    ranks = [Saver(tmp_path, CheckpointSpec(), Topology(2, 1, rank), store) for rank in range(2)]
    for saver in ranks:
        saver.begin(1, lent(on_pages(5000, torch.float32)))
    for saver in ranks:
        saver.give_back()  # returns once it has written: a rank that was slow to start has no part to leave behind
    for saver, left in zip(ranks, (1, 0), strict=True):
        saver.wait()
        assert len(list(tmp_path.iterdir())) == left


@pytest.mark.parametrize("wanted", [True, False])
def test_a_disk_that_is_full_when_history_is_written_costs_that_checkpoint_if_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: bool
) -> None:
    saver, history, tried = saver_in(tmp_path), on_pages(5000, torch.float32), threading.Event()

    def full(*_: Any) -> int:
        tried.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", full)
        saver.begin(1, lent(history))
        assert tried.wait(60)
        saver.give_back()
    if wanted:
        finish(saver, 1)
    saver.wait()
    assert saver.counts.failed == int(wanted)
    assert ("The checkpoint of epoch 1 could not be written" in caplog.text) == wanted
    assert list((tmp_path / "checkpoints").iterdir()) == []


CUTS = [(2, 1, {"mode": mode}) for mode in ("ema", "frozen", "previous", "shift")]
CUTS += [(2, 2, {"mode": "ema"}), (2, 2, {"mode": "previous"}), (3, 1, {"gradients": "last"})]


@pytest.mark.parametrize(("stages", "ways", "history"), CUTS, ids=str)
@pytest.mark.parametrize("kind", ["gcnii", "gat"])
def test_between_forward_and_backward_history_is_what_the_next_epoch_reads(
    ranks: RankPool, tmp_path: Path, kind: str, stages: int, ways: int, history: dict[str, Any]
) -> None:
    job = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "lent"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 120, "averageDegree": 6, "classes": 3},
            "model": {"kind": kind, "layers": 2 * stages, "hidden": 8, "dropout": 0.3},
            "training": {"epochs": 3, "device": "cpu"},
            "parallelism": {"stages": stages, "ways": ways, "chunks": 4, "history": history},
        },
    }
    epochs: list[LentHistory]
    for epochs in ranks.run(lend_histories, stages * ways, job, str(tmp_path), 3):
        assert [epoch.copied for epoch in epochs] == [False] * 3
        for epoch in epochs:
            assert epoch.bytes_between == epoch.bytes_at_end == epoch.read_next
        assert len({epoch.read_next for epoch in epochs}) > 1 or history["mode"] == "frozen"
