"""`wireZeros` changes what crosses, never what is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import RankPool
from rank_tasks import Trained, cross_a_border_without_zeros, train_epochs

from gnnpipe_trainer import kernels
from gnnpipe_trainer.pipeline import zeros
from gnnpipe_trainer.pipeline.thrift import on_one_machine
from gnnpipe_trainer.pipeline.worth import worth_skipping

STOPPING = ["gcn", "sage", "gin", "gat", "gcnii"]  # at zeros; resgcn's border is a sum that may be anything
VERTICES, HIDDEN = 300, 16


def manifest(kind: str, topology: tuple[int, int, int], zeros: str, **more: Any) -> dict[str, Any]:
    stages, ways, chunks = topology
    parallelism = {"stages": stages, "ways": ways, "chunks": chunks, "wireZeros": zeros}
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "zeros"},
        "spec": {
            "graph": {
                "source": "synthetic",
                "vertices": VERTICES,
                "averageDegree": 8,
                "classes": 4,
                "features": 12,
            },
            "model": {"kind": kind, "layers": 4, "hidden": HIDDEN, "dropout": more.get("dropout", 0.5)},
            "training": {"epochs": 20, "learningRate": 0.02, "device": "cpu"},
            "parallelism": parallelism | more.get("parallelism", {}),
        },
    }


def both(
    ranks: RankPool, folder: Path, kind: str, topology: tuple[int, int, int], epochs: int, **more: Any
) -> tuple[list[Trained], list[Trained]]:
    """Trained with zeros sent, and with zeros skipped."""
    world = topology[0] * topology[1]
    sent, skipped = (
        ranks.run(train_epochs, world, manifest(kind, topology, zeros, **more), str(folder), epochs)
        for zeros in ("send", "skip")
    )
    return sent, skipped


def assert_identical(sent: list[Trained], skipped: list[Trained]) -> None:
    for dense, sparse in zip(sent, skipped, strict=True):
        assert dense.losses == sparse.losses
        assert dense.accuracy == sparse.accuracy
        for one, other in zip(dense.gradients, sparse.gradients, strict=True):
            for name, gradient in one.items():
                np.testing.assert_array_equal(gradient, other[name], err_msg=name)


def pipeline_bytes(trained: list[Trained], epoch: int = -1) -> int:
    return sum(rank.sent[epoch].get("pipeline", 0) for rank in trained)


@pytest.mark.parametrize("topology", [(2, 1, 4), (3, 1, 4), (2, 2, 4)], ids=lambda t: "x".join(map(str, t)))
@pytest.mark.parametrize("kind", [*STOPPING, "resgcn"])
def test_training_is_the_same_bit_for_bit(
    ranks: RankPool, tmp_path: Path, kind: str, topology: tuple[int, int, int]
) -> None:
    sent, skipped = both(ranks, tmp_path, kind, topology, 4)
    assert_identical(sent, skipped)
    assert (pipeline_bytes(skipped) < 0.75 * pipeline_bytes(sent)) == (kind in STOPPING)


@pytest.mark.parametrize(
    "more",
    [
        {"dropout": 0.0},
        {"parallelism": {"recompute": True}},
        {"parallelism": {"splitBackward": False}},
        {"parallelism": {"chunks": 1}},
        {"parallelism": {"history": {"mode": "ema", "gradients": "last"}}},
        {"parallelism": {"wire": "bf16"}},
    ],
    ids=lambda more: str(more),
)
def test_it_goes_with_every_other_option(ranks: RankPool, tmp_path: Path, more: dict[str, Any]) -> None:
    assert_identical(*both(ranks, tmp_path, "gcnii", (2, 1, 4), 4, **more))


def test_what_crosses_is_a_bit_per_number_and_room_for_those_that_are_not_zero(
    ranks: RankPool, tmp_path: Path
) -> None:
    sent, skipped = both(ranks, tmp_path, "gcn", (2, 1, 4), 3, dropout=0.5)
    dense = 2 * 4 * VERTICES * HIDDEN
    assert pipeline_bytes(sent) == dense
    share = pipeline_bytes(skipped) / dense
    assert 0.15 < share < 0.45  # a quarter by rights, 1/64 for the bits, and spare room that small slots feel
    assert pipeline_bytes(skipped, epoch=0) > pipeline_bytes(skipped)  # at first there is room for everything


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_slot_with_more_numbers_than_there_is_room_for_arrives_whole(ranks: RankPool, wire: str) -> None:
    """Nearly empty in the first epoch, full in the second, all zero in the third."""
    sender, receiver = ranks.run(cross_a_border_without_zeros, 2, wire, [0.01, 1.0, 0.0, 0.5])
    for epoch, (activations, gradients) in enumerate(zip(receiver, sender, strict=True)):
        np.testing.assert_array_equal(*activations, err_msg=f"epoch {epoch}")
        np.testing.assert_array_equal(*gradients, err_msg=f"epoch {epoch}")


def test_auto_skips_where_bytes_travel_for_long_beside_the_work() -> None:
    assert worth_skipping(link_seconds=1.2, busy_seconds=0.6)
    assert not worth_skipping(link_seconds=0.25, busy_seconds=0.6)


def test_auto_times_no_link_where_all_ranks_met_on_this_machine() -> None:
    assert on_one_machine({"MASTER_ADDR": "127.0.0.1"})
    assert not on_one_machine({"MASTER_ADDR": "job-s0-a0.job.default.svc"})


@pytest.mark.parametrize("kind", ["gcn", "gcnii"])
def test_auto_sends_everything_until_all_ranks_decide_to_skip(
    ranks: RankPool, tmp_path: Path, kind: str
) -> None:
    told = manifest(kind, (3, 1, 4), "auto")
    quick = ranks.run(train_epochs, 3, told, str(tmp_path), 5)
    slow = ranks.run(train_epochs, 3, told, str(tmp_path), 5, 1)
    assert_identical(quick, slow)
    everything = 2 * 2 * 4 * VERTICES * HIDDEN * (2 if kind == "gcnii" else 1)
    assert {pipeline_bytes(quick, epoch) for epoch in range(5)} == {everything}
    assert pipeline_bytes(slow, 1) == everything
    assert pipeline_bytes(slow) < 0.75 * everything


@pytest.fixture(params=["registers", "one by one", "torch"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way of finding zeros: both ends of a border may have another one."""
    assert kernels._loops is not None
    if request.param == "one by one":
        monkeypatch.setattr(kernels, "_wide", 1)
    if request.param == "torch":
        monkeypatch.setattr(kernels, "_loops", None)
    return str(request.param)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("share", [0.0, 0.03, 0.3, 0.97, 1.0])
@pytest.mark.parametrize("count", [1, 7, 8, 15, 16, 17, 33, 63, 500])
@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16])
def test_numbers_are_the_same_without_their_zeros(count: int, share: float, wire: torch.dtype) -> None:
    torch.manual_seed(count)
    marks = torch.rand(count) < share
    numbers, others = (torch.randn(count, dtype=torch.float32).bfloat16().float() for _ in range(2))
    numbers *= marks
    bits, values = torch.empty(-(-count // 8), dtype=torch.uint8), torch.empty(count, dtype=wire)
    kept = zeros.pack(numbers, bits, values)
    assert torch.equal(bits, zeros._bits_on_device(marks))  # what a GPU does
    assert torch.equal(values[:kept].float(), numbers[marks])
    assert torch.equal(zeros.places_of(bits, count), marks.nonzero().flatten())
    assert torch.equal(zeros._places_on_device(bits, count), marks.nonzero().flatten())

    again = torch.full((count,), torch.nan, dtype=torch.float32)
    assert zeros.spread(values[: max(1, kept)], bits, again) == kept
    assert torch.equal(again, numbers)
    if kept > 1:
        assert zeros.spread(values[: kept // 2], bits, again) == kept  # this is how surplus is noticed

    assert zeros.pick(others, bits, values) == kept
    assert torch.equal(values[:kept].float(), others[marks])


@pytest.mark.usefixtures("loops")
def test_what_is_no_number_crosses() -> None:
    """Divergence is seen at once, not hidden by a zero."""
    numbers = torch.tensor([0.0, float("nan"), -0.0, float("inf")] * 8, dtype=torch.float32)
    bits, values = torch.empty(4, dtype=torch.uint8), torch.empty_like(numbers)
    assert zeros.pack(numbers, bits, values) == 16
    assert bits.tolist() == [0b10101010] * 4
