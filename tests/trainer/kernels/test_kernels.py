"""Our loops give what torch gives, to the last bit where they say so: a job may go on on a machine without them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnpipe_api.job import HistorySpec
from gnnpipe_trainer import kernels
from gnnpipe_trainer.pipeline.aggregate import RowBlock, aggregate
from gnnpipe_trainer.pipeline.history import side_by_side


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float32)


def random_rows(rows: int, columns: int, entries: int) -> RowBlock:
    """Some rows are empty, as those of vertices without neighbours."""
    ends = torch.sort(torch.randint(0, entries + 1, (rows - 1,))).values
    offsets = torch.cat([torch.tensor([0]), ends, torch.tensor([entries])]).to(torch.int32)
    return RowBlock(offsets, torch.randint(0, columns, (entries,), dtype=torch.int32), drawn(entries))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("width", [16, 17, 31, 64, 100, 128, 129, 260])
def test_a_weighted_sum_is_torchs_bit_for_bit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(width)
    block, source = random_rows(200, 500, 3000), drawn(500, width)
    ours = aggregate(block, source)
    assert kernels.fits(source)
    monkeypatch.setattr(kernels, "_loops", None)
    assert torch.equal(ours, aggregate(block, source))


@pytest.mark.usefixtures("threads")
def test_rows_without_entries_are_zero() -> None:
    none = torch.zeros(0, dtype=torch.int32)
    block = RowBlock(torch.zeros(4, dtype=torch.int32), none, drawn(0))
    assert torch.equal(aggregate(block, drawn(5, 32)), torch.zeros(3, 32, dtype=torch.float32))


@pytest.mark.parametrize("position", [0, 1, 3, 5, 6])
def test_entries_from_a_position_on_are_kept_in_their_order(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(position)
    block, positions = random_rows(50, 80, 700), torch.randint(0, 6, (80,), dtype=torch.int32)
    ours = block.from_position(positions, position)
    monkeypatch.setattr(kernels, "_loops", None)
    wanted = block.from_position(positions, position)
    assert torch.equal(ours.offsets, wanted.offsets)
    assert torch.equal(ours.columns, wanted.columns)
    assert torch.equal(ours.weights, wanted.weights)


@pytest.mark.parametrize("width", [1, 7, 16, 64])
def test_history_blends_as_torch_does_bit_for_bit(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    slots, pushed = [slice(0, 3), slice(3, 700), slice(700, 701)], [drawn(701, width) for _ in range(3)]
    found = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(kernels, "_loops", None)
        (history,) = side_by_side(701, [width], HistorySpec(), torch.float32, torch.device("cpu"))
        assert history._blends_at_once is compiled
        for fresh in pushed:
            for rows in slots:
                place = history.push(rows, fresh[rows])
                assert place is not None
                assert torch.equal(place, fresh[rows])
            drift = history.take_drift()
            history.end_epoch()
        found.append((history.live.clone(), drift))
    (ours, our_drift), (torchs, their_drift) = found
    assert torch.equal(ours, torchs)
    assert our_drift == pytest.approx(their_drift, rel=1e-5)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("depth", "width"), [(16, 64), (64, 20), (7, 100), (64, 3)])
def test_a_product_that_enters_history_is_one_that_is_pushed(depth: int, width: int, adds: bool) -> None:
    torch.manual_seed(0)
    rows, x, matrix = slice(2, 503), drawn(501, depth), drawn(depth, width)
    bias, before = (None, drawn(501, width)) if adds else (drawn(width), None)
    one, other = (
        side_by_side(600, [width], HistorySpec(), torch.float32, torch.device("cpu"))[0] for _ in range(2)
    )
    for _ in range(2):
        entry = one.entry(rows)
        assert entry is not None
        out = drawn(501, width) if before is None else before.clone()
        kernels.product(out, x, matrix, bias, relu=True, adds=adds)
        other.push(rows, out)
        kernels.product_to_history(
            entry, x, matrix, bias, None if before is None else before.clone(), relu=True
        )
        assert torch.equal(one.live, other.live)
        assert one.take_drift() == other.take_drift()
        one.end_epoch()
        other.end_epoch()
    assert torch.equal(one.live, other.live)
    assert one.live.count_nonzero() > 0


@pytest.mark.parametrize("spec", [HistorySpec(mode="previous"), HistorySpec(correction="mean")])
def test_only_a_plain_average_can_be_entered(spec: HistorySpec) -> None:
    (history,) = side_by_side(10, [16], spec, torch.float32, torch.device("cpu"))
    assert history.entry(slice(0, 5)) is None


def test_halo_rows_are_blended_without_being_measured() -> None:
    (history,) = side_by_side(10, [16], HistorySpec(), torch.float32, torch.device("cpu"))
    history.push_halo(slice(2, 7), drawn(5, 16))
    assert history.take_drift() == (0.0, 0.0)
    assert history.live[2:7].abs().sum() > 0
    assert history.coming[2:7].abs().sum() > 0


def test_what_the_loops_do_not_know_is_left_to_torch() -> None:
    for odd in (torch.zeros(4, 16, dtype=torch.float64), drawn(4, 32)[:, ::2], drawn(16, 4).t()):
        assert not kernels.fits(odd)
