"""Files that are whole or not there: written beside and renamed, so that a reader never sees half of one.

Light to import, like endings.py.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str, writer: str = "new") -> None:
    """`writer` tells those apart that may write the same file at the same time."""
    beside = path.with_name(f"{path.name}.{writer}")
    beside.write_text(text)
    os.replace(beside, path)
