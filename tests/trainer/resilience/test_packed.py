"""What a checkpoint is written from: copies that stay, and history where it lies until training wants it back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnnpipe_api.job import HistorySpec
from gnnpipe_trainer.checkpoint import synced_file
from gnnpipe_trainer.checkpoint.loan import Fetched, Loan, lend
from gnnpipe_trainer.checkpoint.packed import Copies, Packed, bytes_of, in_place
from gnnpipe_trainer.checkpoint.synced_file import BLOCK_BYTES, PIECE_BYTES, write_synced
from gnnpipe_trainer.pages import on_pages
from gnnpipe_trainer.pipeline.history import side_by_side


def blocks_of_a_stage(mode: str = "ema") -> dict[str, Tensor]:
    spec = HistorySpec.model_validate({"mode": mode})
    made = side_by_side(5, [3, 4, 2], spec, torch.float32, torch.device("cpu"))
    return {f"history.{block}.way0": history.coming.normal_() for block, history in enumerate(made)}


def tensors_in(packed: Packed) -> dict[str, Tensor]:
    return {name: spot.of(packed.buffers) for name, spot in packed.index.items()}


def test_copies_stay_when_what_they_were_made_from_goes_on() -> None:
    tensors = blocks_of_a_stage() | {
        "history.0.way0.gradients": torch.randn(5, 3),
        "model.weight": torch.randn(2, 2),
        "model.step": torch.ones(()),
        "best.t": torch.randn(3, 2).t(),
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    packed = Copies().fill(tensors)
    for tensor in tensors.values():
        tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors_in(packed).items())
    assert sorted(packed.buffers) == ["gradients.float32", "history.float32", "state.float32"]


@pytest.mark.parametrize("mode", ["ema", "previous"])
def test_the_histories_of_a_stage_are_lent_as_one_without_a_copy(mode: str) -> None:
    histories = blocks_of_a_stage(mode)
    packed = lend(histories, Copies()).arrived()
    (whole,) = packed.buffers.values()
    assert whole.data_ptr() == histories["history.0.way0"].data_ptr()
    assert whole.data_ptr() % BLOCK_BYTES == 0  # so that it can be written directly
    assert all(torch.equal(tensor, histories[name]) for name, tensor in tensors_in(packed).items())


def test_histories_that_do_not_lie_side_by_side_are_copied() -> None:
    first, second, third = blocks_of_a_stage().items()
    for apart in ([first, third, second], [first, third], [first, ("history.1.way0", second[1].clone())]):
        assert in_place(dict(apart)) is None
        loan = lend(dict(apart), Copies())
        assert isinstance(loan, Fetched)
        assert all(torch.equal(tensors_in(loan.arrived())[name], tensor) for name, tensor in apart)
        loan.give_back()  # at once: nobody reads it


def test_where_there_is_no_history_nothing_is_lent() -> None:
    assert lend({}, Copies()).arrived() == Packed({}, {})


def test_training_gets_history_back_in_the_middle_of_a_file_which_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = on_pages(3 * PIECE_BYTES // 4 + 5, torch.float32).normal_()
    before = bytes(bytes_of(history))
    loan = Loan(Packed({}, {"history.float32": history}))
    writing, go_on, written = threading.Event(), threading.Event(), list[int]()
    write_all = synced_file._write_all

    def write_slowly(descriptor: int, piece: memoryview, offset: int) -> None:
        written.append(offset)
        writing.set()
        assert go_on.wait(60)
        write_all(descriptor, piece, offset)

    monkeypatch.setattr(synced_file, "_write_all", write_slowly)
    thread = threading.Thread(target=write_synced, args=(tmp_path / "file", bytes_of(history), loan.moved))
    thread.start()
    assert writing.wait(60)
    back = threading.Thread(target=loan.give_back)
    back.start()
    back.join(0.05)
    assert back.is_alive()  # the first piece is still being read
    go_on.set()
    back.join(60)
    history.zero_()
    thread.join(60)
    assert written == [0, PIECE_BYTES, 2 * PIECE_BYTES, 3 * PIECE_BYTES]
    assert (tmp_path / "file").read_bytes() == before


def test_history_is_free_once_its_last_byte_is_written_and_before_the_disk_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loan = Loan(Packed({}, {"history.float32": on_pages(1000, torch.float32)}))
    given_back: list[bool] = []

    def settle(_: int) -> None:
        loan.give_back()  # would wait for good
        given_back.append(True)

    monkeypatch.setattr("os.fsync", settle)
    write_synced(tmp_path / "file", bytes_of(on_pages(1000, torch.float32)), loan.moved)
    assert given_back == [True]
