"""A file of JSON lines on a disk that may be full for a while."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnnpipe_trainer.whole_file import write_whole


class LineFile:
    """Only whole lines, in order: what found no room is kept and written with the next line that does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: list[str] = []

    def append(self, line: dict[str, Any]) -> None:
        """Raises OSError where there is no room; the line is not lost."""
        self._unwritten.append(json.dumps(line) + "\n")
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a") as file:
                file.write("".join(self._unwritten))
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, size)  # half a line would spoil the next one
            raise
        self._unwritten = []

    def begin(self, lines: list[dict[str, Any]]) -> None:
        """These and no others."""
        self._unwritten = []
        write_whole(self.path, "".join(json.dumps(line) + "\n" for line in lines))
