"""A checkpoint is whole or it is not used."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnpipe_trainer.checkpoint.folder import (
    MANIFEST,
    SPARE,
    Checkpoint,
    Damaged,
    beside,
    drop_spare,
    folder_of,
    found,
    newest_whole,
    prune,
    publish,
    read_manifest,
    verified,
)
from gnnpipe_trainer.checkpoint.packed import Copies
from gnnpipe_trainer.checkpoint.parts import Part, load_tensors

NAMES = ("model.blocks.0.weight", "optimizer.blocks.0.weight.step", "history.3.way1")


def tensors(epoch: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(epoch)
    shapes = ((4, 3), (), (5, 2))
    return {name: torch.rand(shape, generator=generator) for name, shape in zip(NAMES, shapes, strict=True)}


def write_part(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """In two turns, as training does; returns the checksum of each file."""
    part = Part(folder, name)
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith("history.")}
    part.write(Copies().fill(kept))
    part.write(Copies().fill({name: tensor for name, tensor in tensors.items() if name not in kept}))
    part.finish()
    return part.checksums


def write(checkpoints: Path, epoch: int) -> Path:
    folder = folder_of(checkpoints, epoch)
    checksums = {}
    for rank in range(2):
        part = {f"{name}.of{rank}": tensor for name, tensor in tensors(epoch).items()}
        checksums |= write_part(beside(folder), f"rank{rank}", part)
    publish(folder, {"epoch": epoch, "best": {"epoch": epoch, "accuracy": [0.25, 0.5, 0.125]}}, checksums)
    return folder


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    write(checkpoints, 3)
    write(checkpoints, 7)
    return checkpoints


def test_what_was_written_is_read_whichever_rank_wrote_it(two_checkpoints: Path) -> None:
    checkpoint = verified(folder_of(two_checkpoints, 7))
    loaded = load_tensors(checkpoint, lambda name: name.startswith("model."))
    assert sorted(loaded) == ["model.blocks.0.weight.of0", "model.blocks.0.weight.of1"]
    assert all(torch.equal(tensor, tensors(7)["model.blocks.0.weight"]) for tensor in loaded.values())


def damage(dice: random.Random, folder: Path) -> str:
    """Flip one bit, cut a file short, or lose it; returns what was done."""
    file = dice.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    content = bytearray(file.read_bytes())
    place = dice.randrange(len(content))
    kind = dice.choice(["flip", "flip", "cut", "lose"])
    if kind == "flip":
        content[place] ^= 1 << dice.randrange(8)
        file.write_bytes(content)
    elif kind == "cut":
        file.write_bytes(content[:place])
    else:
        file.unlink()
    return f"{kind} {file.name} at {place}"


def test_a_hundred_damaged_checkpoints_are_never_resumed_from(two_checkpoints: Path, tmp_path: Path) -> None:
    dice = random.Random(5)
    for number in range(100):
        checkpoints = tmp_path / str(number)
        shutil.copytree(two_checkpoints, checkpoints)
        done = damage(dice, folder_of(checkpoints, 7))
        warnings: list[str] = []
        checkpoint = newest_whole(checkpoints, warnings.append)
        assert checkpoint is not None, done
        whole = verified(folder_of(two_checkpoints, checkpoint.epoch))
        assert checkpoint.content == whole.content, done
        if checkpoint.epoch == 7:  # a blank of manifest.json turned into another blank: nothing is lost
            assert MANIFEST in done
            continue
        assert len(warnings) == 1, done
        assert str(folder_of(checkpoints, 7)) in warnings[0]


def test_with_no_whole_checkpoint_each_is_named_and_none_is_used(
    two_checkpoints: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    shutil.copytree(two_checkpoints, checkpoints)
    for folder in found(checkpoints):
        (folder / "rank1" / "state.float32.bin").write_bytes(b"")
    warnings: list[str] = []
    assert newest_whole(checkpoints, warnings.append) is None
    assert ["epoch-000007" in warnings[0], "epoch-000003" in warnings[1]] == [True, True]


def test_a_folder_without_a_manifest_is_damaged(two_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(folder_of(two_checkpoints, 3), tmp_path / "epoch-000003")
    (tmp_path / "epoch-000003" / MANIFEST).unlink()
    with pytest.raises(Damaged, match=r"manifest\.json cannot be read: No such file"):
        verified(tmp_path / "epoch-000003")


def test_a_manifest_of_another_format_is_not_read(two_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(folder_of(two_checkpoints, 3), tmp_path / "epoch-000003")
    path = tmp_path / "epoch-000003" / MANIFEST
    outer = json.loads(path.read_text())
    outer["content"]["epoch"] = 4
    path.write_text(json.dumps(outer))
    with pytest.raises(Damaged, match="not as it was written"):
        verified(tmp_path / "epoch-000003")


class Intruder:
    """Pickled, it is a call of `touch` when somebody reads it."""

    def __init__(self, footprint: Path) -> None:
        self.footprint = footprint

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.footprint}",)


@pytest.mark.parametrize("file", ["state.float32.bin", "index.json"])
def test_code_in_a_tampered_checkpoint_is_not_run_even_where_the_checksums_fit(
    two_checkpoints: Path, tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "epoch-000003"
    shutil.copytree(folder_of(two_checkpoints, 3), folder)
    intruder = pickle.dumps(Intruder(tmp_path / "footprint"))
    (folder / "rank0" / file).write_bytes(intruder)
    checkpoint = Checkpoint(folder, read_manifest(folder))
    with pytest.raises(Damaged, match=r"does not have the \d+ elements|cannot be read"):
        load_tensors(checkpoint, lambda name: True)
    assert not (tmp_path / "footprint").exists()
    pickle.loads(intruder)  # the trap does work
    assert (tmp_path / "footprint").exists()


def test_tensors_come_back_in_their_own_dtypes_and_shapes(tmp_path: Path) -> None:
    mixed = {
        "model.scale": torch.rand(3, 0, 2),
        "model.seen": torch.tensor(7),
        "history.1.way0": torch.rand(6, 5).bfloat16(),
        "model.weight": torch.rand(4, 3).t(),
    }
    copies, part, folder = Copies(), Part(beside(folder_of(tmp_path, 1)), "rank0"), folder_of(tmp_path, 1)
    for more in range(2):  # the second time into the same memory
        packed = copies.fill({name: tensor + more for name, tensor in mixed.items()})
    part.write(packed)
    part.finish()
    publish(folder, {"epoch": 1}, part.checksums)
    loaded = load_tensors(verified(folder), lambda name: True)
    assert loaded.keys() == mixed.keys()
    for name, tensor in mixed.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor + 1)


def test_half_written_checkpoints_do_not_count(tmp_path: Path) -> None:
    write_part(beside(folder_of(tmp_path, 5)), "rank0", tensors(5))
    assert found(tmp_path) == []


def test_a_part_that_another_machine_wrote_elsewhere_is_missed_before_it_is_needed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, 5)
    checksums = write_part(beside(folder), "rank0", tensors(5))
    with pytest.raises(FileNotFoundError, match="a folder that all ranks share"):
        publish(folder, {"epoch": 5}, checksums | {"rank1/state.float32.bin": "0" * 64})
    assert found(tmp_path) == []


def test_the_newest_are_kept_and_damaged_later_ones_do_not_push_them_out(tmp_path: Path) -> None:
    for epoch in (1, 3, 5, 9):
        write(tmp_path, epoch)
    prune(tmp_path, keep=2, newest=5)
    assert [folder.name for folder in found(tmp_path)] == ["epoch-000009", "epoch-000005", "epoch-000003"]


def test_a_checkpoint_is_written_over_the_one_that_was_replaced(tmp_path: Path) -> None:
    """The files stay the same ones on disk, their bytes and the rest of the folder are the new one's."""
    for epoch in (0, 1):
        write(tmp_path, epoch)
    prune(tmp_path, keep=1, newest=1)
    spare = tmp_path / SPARE / "rank0" / "history.float32.bin"
    inode = spare.stat().st_ino
    (spare.parent / "gradients.float32.bin").write_bytes(b"of a job that kept them")
    (spare.parent / "state.float32.bin").write_bytes(bytes(1 << 16))  # longer than what comes
    written = write(tmp_path, 2)
    assert (written / "rank0" / "history.float32.bin").stat().st_ino == inode
    assert newest_whole(tmp_path, pytest.fail) == Checkpoint(written, read_manifest(written))
    assert sorted(load_tensors(verified(written), lambda _: True)) == sorted(
        f"{name}.of{rank}" for name in NAMES for rank in range(2)
    )
    assert {file.name for file in (written / "rank0").iterdir()} == {
        "history.float32.bin",
        "index.json",
        "state.float32.bin",
    }
    prune(tmp_path, keep=1, newest=2)
    assert found(tmp_path) == [written]
    drop_spare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [written.name]


def test_with_a_spare_one_that_nobody_took_the_next_is_removed(tmp_path: Path) -> None:
    for epoch in range(3):
        write(tmp_path, epoch)
    prune(tmp_path, keep=1, newest=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000002", SPARE]
