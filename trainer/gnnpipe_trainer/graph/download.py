"""What the loaders of others need around them: one at a time, no questions, errors that name the files."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from gnnpipe_trainer.graph.data import BadGraph

LOCK = ".gnnpipe.lock"
ANSWER_SECONDS = 20.0  # a network that swallows packets must not hold a rank for minutes


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Ranks and pods that share `root` must not download into it, or process it, at once."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / LOCK)
        lock.acquire()
    except OSError:  # a read-only volume: nobody can write there, so there is nothing to wait for
        yield
        return
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def unattended() -> Iterator[None]:
    """Loaders ask on stdin (the answer here is "no change") and print on stdout, which is the live view's."""
    stdin, timeout = sys.stdin, socket.getdefaulttimeout()
    sys.stdin = io.StringIO("n\n" * 10)
    socket.setdefaulttimeout(ANSWER_SECONDS)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdin = stdin
        socket.setdefaulttimeout(timeout)


def explained(dataset_class: type[Any], label: str) -> type[Any]:
    """The same torch-geometric data set class, but its failures say which files to put where."""
    methods: dict[str, Any] = {}

    # Inside the methods `self` knows the raw paths; the caller of a constructor that raised does not.
    if hasattr(dataset_class, "download"):

        def download(self: Any) -> None:
            raw_folder = Path(self.raw_dir)
            there = _files(raw_folder)
            try:
                dataset_class.download(self)
            except Exception as error:
                _remove(_files(raw_folder) - there, raw_folder)
                raise BadGraph(_how_to_get(self, label, error)) from error

        methods["download"] = download

    if hasattr(dataset_class, "process"):

        def process(self: Any) -> None:
            try:
                dataset_class.process(self)
            except OSError:
                raise
            except Exception as error:
                raise BadGraph(
                    f"{label}: the files in {self.raw_dir} cannot be read ({type(error).__name__}: {error}); "
                    "remove that folder and put or download them again"
                ) from error

        methods["process"] = process

    return type(dataset_class.__name__, (dataset_class,), methods)


def _how_to_get(dataset: Any, label: str, error: Exception) -> str:
    reason = f"{label} is not there and cannot be downloaded ({error})"
    archive = getattr(dataset, "meta_info", None)
    if archive is not None:  # ogb: one archive, whose folder has another name
        return (
            f"{reason}; fetch {archive['url']}, unpack it, and put its folder {archive['download_name']} as "
            f"{dataset.root}, so that {dataset.raw_paths[0]} is there"
        )
    missing = [path for path in dataset.raw_paths if not os.path.exists(path)]
    return f"{reason}; put these files in place: {', '.join(missing)}"


def _files(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


def _remove(files: set[Path], folder: Path) -> None:
    """A half-downloaded file would be taken for a whole one at the next start."""
    for file in files:
        file.unlink(missing_ok=True)
    for empty in (folder, folder.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()
