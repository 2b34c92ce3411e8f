"""Lines of epochs on a disk that is full for a while."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnnpipe_trainer.line_file import LineFile


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: a write is cut short there, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def epochs(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_lines_that_found_no_room_come_with_the_next_that_does_and_none_is_torn(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "epochs.jsonl")
    file.append({"epoch": 0})
    size = file.path.stat().st_size
    for epoch in (1, 2):
        with room_for(size + 5), pytest.raises(OSError, match="File too large"):
            file.append({"epoch": epoch})
        assert epochs(file.path) == [0]
    file.append({"epoch": 3})
    assert epochs(file.path) == [0, 1, 2, 3]


def test_a_new_beginning_forgets_what_was_not_written(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "epochs.jsonl")
    with room_for(5), pytest.raises(OSError, match="File too large"):
        file.append({"epoch": 7})
    file.begin([{"epoch": 0}, {"epoch": 1}])
    file.append({"epoch": 2})
    assert epochs(file.path) == [0, 1, 2]
