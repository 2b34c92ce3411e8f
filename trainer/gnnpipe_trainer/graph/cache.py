"""Chunked graphs on disk, by content: made once, then memory-mapped by every rank and every later run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph.chunks import ChunkedGraph, cut
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.graph.sources import fingerprint, load_graph

log = logging.getLogger(__name__)

FORMAT = 2  # raise when the files, the generator, the cleaning or the partition change
META = "meta.json"
SAME_WHEN_UNDIRECTED = {"out_indptr": "indptr", "out_indices": "indices"}


def chunked_graph(
    spec: GraphSpec, ways: int, chunks: int, manifest_folder: Path, cache_dir: Path | None = None
) -> ChunkedGraph:
    """The manifest's graph in `chunks` chunks; from the cache, or made and put there.

    Any number of ranks and runs may ask at once: one makes it, the others wait and read.
    """
    identity = [FORMAT, fingerprint(spec, manifest_folder), ways, chunks]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    first = default_folder() if cache_dir is None else cache_dir
    graph, made = _read(first / key), None
    for folder in (first, temporary_folder()):
        if graph is not None:
            return graph
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with FileLock(folder / f"{key}.lock"):
                graph = _read(folder / key)
                if graph is None:
                    made = made or _make(spec, ways, chunks, manifest_folder)
                    _write(made, folder / key)
                    graph = _read(folder / key)
        except OSError as error:
            log.warning("The chunked graph cannot be kept in %s (%s)", folder, error)
    if graph is None:
        raise BadGraph(
            f"the chunked graph can be written neither to {first} nor to {temporary_folder()}; "
            "name a folder with room in the environment variable GNNPIPE_CACHE"
        )
    return graph


def _make(spec: GraphSpec, ways: int, chunks: int, manifest_folder: Path) -> ChunkedGraph:
    start = time.perf_counter()
    graph = cut(load_graph(spec, manifest_folder), ways, chunks)
    log.info(
        "Cut %d vertices and %d edges into %d chunks in %.1f s",
        graph.num_vertices,
        graph.num_edges,
        chunks,
        time.perf_counter() - start,
    )
    return graph


def mirrors_for(spec: GraphSpec, parts: int, manifest_folder: Path, cache_dir: Path | None = None) -> int:
    """Rows that graph parallelism over `parts` ranks moves before each aggregation of this graph."""
    return chunked_graph(spec, parts, parts, manifest_folder, cache_dir).mirrors()


def default_folder() -> Path:
    """$GNNPIPE_CACHE, or gnnpipe in the user's cache folder."""
    named = os.environ.get("GNNPIPE_CACHE")
    try:
        return Path(named).expanduser() if named else Path.home() / ".cache" / "gnnpipe"
    except RuntimeError:  # a container's user without a home
        return temporary_folder()


def temporary_folder() -> Path:
    """Where entries go when the cache folder cannot be written: one for all ranks of a user."""
    return Path(tempfile.gettempdir()) / f"gnnpipe-cache-{os.getuid()}"


def _array_names(directed: bool) -> list[str]:
    plain = ("ways", "directed", "num_classes", "content_hash")
    names = [field.name for field in fields(ChunkedGraph) if field.name not in plain]
    return [name for name in names if directed or name not in SAME_WHEN_UNDIRECTED]


def _write(graph: ChunkedGraph, entry: Path) -> None:
    """Write beside and rename, so that an entry is either whole or not there. The caller holds the lock."""
    for left in entry.parent.glob(f"{entry.name}.*/"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    beside = Path(tempfile.mkdtemp(prefix=f"{entry.name}.", dir=entry.parent))
    try:
        for name in _array_names(graph.directed):
            np.save(beside / f"{name}.npy", getattr(graph, name), allow_pickle=False)
        meta = {
            "ways": graph.ways,
            "directed": graph.directed,
            "num_classes": graph.num_classes,
            "content_hash": graph.content_hash,
            "bytes": {file.name: file.stat().st_size for file in sorted(beside.iterdir())},
        }
        (beside / META).write_text(json.dumps(meta))
        if entry.exists():  # it could not be read: make room
            shutil.rmtree(entry)
        beside.rename(entry)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _read(entry: Path) -> ChunkedGraph | None:
    """The entry, memory-mapped; None when it is not there or not whole."""
    try:
        meta: dict[str, Any] = json.loads((entry / META).read_text())
        for file, size in meta.pop("bytes").items():
            if (entry / file).stat().st_size != size:
                raise ValueError(f"{file} does not have the {size} bytes it was written with")
        arrays: dict[str, Any] = {
            name: np.asarray(np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False))
            for name in _array_names(meta["directed"])
        }
        for name, twin in SAME_WHEN_UNDIRECTED.items():
            arrays.setdefault(name, arrays[twin])
        return ChunkedGraph(**meta, **arrays)
    except (FileNotFoundError, NotADirectoryError):
        with suppress(OSError):
            if entry.is_dir():
                log.warning("The cached graph in %s is not complete; making it again", entry)
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("The cached graph in %s is damaged (%s); making it again", entry, error)
        return None
