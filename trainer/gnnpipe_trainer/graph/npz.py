"""Graphs from .npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from gnnpipe_trainer.graph.arrays import Array, graph_from_arrays
from gnnpipe_trainer.graph.data import BadGraph, GraphData


def npz_graph(path: Path, *, split: int, directed: bool) -> GraphData:
    return graph_from_arrays(path.name, _read(path), split=split, directed=directed)


def _read(path: Path) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise BadGraph(f"{path} is not an .npz file; write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except ValueError as error:
        raise BadGraph(
            f"{path} holds an array of Python objects, which could run code and is not loaded ({error}); "
            "save plain arrays of numbers"
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        raise BadGraph(f"{path} is damaged ({error}); write it again with numpy.savez") from error
