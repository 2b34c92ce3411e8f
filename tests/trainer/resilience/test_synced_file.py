"""Files that go past the page cache hold what was given, wherever it lies in memory and on disk."""

from __future__ import annotations

import mmap
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gnnpipe_trainer.checkpoint.folder import digest
from gnnpipe_trainer.checkpoint.synced_file import BLOCK_BYTES, PIECE_BYTES, write_synced


def content(length: int, shift: int = 0) -> memoryview:
    """Bytes that begin `shift` bytes after a page."""
    pages = mmap.mmap(-1, length + shift + 1)
    pages[:] = bytes(number % 251 for number in range(4096)) * ((length + shift) // 4096) + bytes(
        number % 241 for number in range((length + shift) % 4096 + 1)
    )
    return memoryview(pages)[shift : shift + length]


@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize(
    "length", [0, 1, BLOCK_BYTES, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + BLOCK_BYTES, PIECE_BYTES + 9]
)
def test_what_is_written_is_what_was_given_and_has_its_checksum(
    tmp_path: Path, length: int, shift: int
) -> None:
    given = content(length, shift)
    checksum = write_synced(tmp_path / "file", given)
    assert (tmp_path / "file").read_bytes() == given
    assert checksum == digest(tmp_path / "file")


def test_a_longer_file_that_was_there_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old" * PIECE_BYTES)
    write_synced(tmp_path / "file", content(BLOCK_BYTES + 1))
    assert (tmp_path / "file").read_bytes() == content(BLOCK_BYTES + 1)


def test_where_nothing_can_be_written_directly_it_is_written_all_the_same() -> None:
    with TemporaryDirectory(dir="/dev/shm") as in_memory:
        file = Path(in_memory) / "file"
        checksum = write_synced(file, content(PIECE_BYTES + 9))
        assert file.read_bytes() == content(PIECE_BYTES + 9)
        assert checksum == digest(file)
