"""The cache: made once, read by all, and never trusted further than its files go."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph import BadGraph, ChunkedGraph, chunked_graph, mirrors_for

SPEC = GraphSpec(source="synthetic", vertices=400, average_degree=8, features=6)
ARRAYS = ("bounds", "permutation", "indptr", "indices", "in_degree", "features", "labels", "train_mask")
HERE = Path(".")

# What a rank does: ask for the graph, say which one it got; the log says whether it was made.
RANK = """
import logging, resource, sys
from pathlib import Path
from gnnpipe_api.spec_graph import GraphSpec
from gnnpipe_trainer.graph import chunked_graph
logging.basicConfig(level=logging.INFO)
if len(sys.argv) > 2:  # files can grow no larger than this: what a full disk looks like
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
spec = GraphSpec(source="synthetic", vertices=400, average_degree=8, features=6)
print(chunked_graph(spec, 2, 4, Path("."), Path(sys.argv[1])).content_hash)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own, for this process and those it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def entries(cache: Path) -> list[Path]:
    return [meta.parent for meta in cache.glob("*/meta.json")]


def ask(cache: Path) -> ChunkedGraph:
    return chunked_graph(SPEC, 2, 4, HERE, cache)


def start_rank(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_what_is_read_equals_what_was_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ask(cache)
    monkeypatch.setattr("gnnpipe_trainer.graph.cache.load_graph", None)  # reading needs no source
    read = ask(cache)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name))
    assert read.content_hash == made.content_hash
    assert (read.ways, read.num_chunks, read.directed, read.num_classes) == (2, 4, False, 16)


def test_arrays_are_memory_mapped_and_cannot_be_written(cache: Path) -> None:
    features = ask(cache).features
    assert isinstance(features.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        features[0, 0] = 1.0


def test_another_seed_ways_or_chunks_is_another_entry(cache: Path) -> None:
    ask(cache)
    chunked_graph(SPEC.model_copy(update={"seed": 1}), 2, 4, HERE, cache)
    chunked_graph(SPEC, 1, 4, HERE, cache)
    chunked_graph(SPEC, 2, 8, HERE, cache)
    assert len(entries(cache)) == 4


def test_a_file_counts_by_its_content_not_its_name(cache: Path, write_npz: Callable[..., Path]) -> None:
    path = write_npz()
    spec = GraphSpec(source="npz", path=path.name)
    first = chunked_graph(spec, 1, 2, path.parent, cache)
    copy = path.rename(path.with_name("copy.npz"))
    chunked_graph(GraphSpec(source="npz", path="copy.npz"), 1, 2, copy.parent, cache)
    assert len(entries(cache)) == 1
    write_npz(x=np.ones((6, 2)))
    assert chunked_graph(spec, 1, 2, path.parent, cache).content_hash != first.content_hash


def test_directed_graphs_keep_both_directions(cache: Path, write_npz: Callable[..., Path]) -> None:
    spec = GraphSpec(source="npz", path=str(write_npz()), directed=True)
    for graph in (chunked_graph(spec, 1, 1, HERE, cache), chunked_graph(spec, 1, 1, HERE, cache)):
        assert graph.indices.tolist() == [5, 0, 1, 2, 3, 4]
        assert graph.out_indices.tolist() == [1, 2, 3, 4, 5, 0]


def test_a_graph_without_edges_is_kept_too(cache: Path, write_npz: Callable[..., Path]) -> None:
    spec = GraphSpec(source="npz", path=str(write_npz(edge_index=np.zeros((2, 0), np.int64))))
    graph = chunked_graph(spec, 1, 3, HERE, cache)
    assert (graph.num_edges, graph.num_chunks, graph.halo(0).size) == (0, 3, 0)
    assert len(entries(cache)) == 1


def test_many_ranks_at_once_make_the_graph_once(cache: Path) -> None:
    ranks = [start_rank(str(cache)) for _ in range(4)]
    ends = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, ends
    assert len({hash_ for hash_, _ in ends}) == 1
    assert sum(log.count("Cut 400 vertices") for _, log in ends) == 1
    assert len(entries(cache)) == 1


def test_a_maker_that_was_killed_holds_nobody_up_and_leaves_nothing(cache: Path) -> None:
    ask(cache)
    (entry,) = entries(cache)
    half_written = entry.rename(entry.with_name(f"{entry.name}.abc"))
    (half_written / "features.npy").unlink()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, filelock; filelock.FileLock(sys.argv[1]).acquire(); print('held', flush=True); input()",
            str(cache / f"{entry.name}.lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()
    ask(cache)
    assert entries(cache) == [entry]
    assert not half_written.exists()


def truncate(entry: Path) -> None:
    with (entry / "features.npy").open("r+b") as file:
        file.truncate(500)


def remove_array(entry: Path) -> None:
    (entry / "indices.npy").unlink()


def scribble_header(entry: Path) -> None:
    with (entry / "labels.npy").open("r+b") as file:
        file.write(b"\0" * 64)


def scribble_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("{")


def empty_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("{}")


@pytest.mark.parametrize("damage", [truncate, remove_array, scribble_header, scribble_meta, empty_meta])
def test_a_damaged_entry_is_made_again(damage: Callable[[Path], None], cache: Path) -> None:
    good = ask(cache).content_hash
    (entry,) = entries(cache)
    damage(entry)
    again = ask(cache)
    assert again.content_hash == good
    assert again.features.shape == (400, 6)
    assert entries(cache) == [entry]


def test_a_cache_that_cannot_be_written_gives_way_to_the_temporary_folder(
    tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert ask(tmp_path / "file" / "cache").num_vertices == 400
    assert f"cannot be kept in {tmp_path}/file/cache" in caplog.text
    assert len(list(temporary.glob("gnnpipe-cache-*/*/meta.json"))) == 1


def test_a_full_disk_is_said_in_one_sentence_and_leaves_no_half_entry(cache: Path, temporary: Path) -> None:
    rank = start_rank(str(cache), "2000")
    _, log = rank.communicate(timeout=120)
    assert "name a folder with room in the environment variable GNNPIPE_CACHE" in log
    assert not list(cache.glob("*/"))
    assert not list(temporary.glob("*/*/"))


def test_the_environment_names_the_default_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNPIPE_CACHE", str(cache))
    chunked_graph(SPEC, 1, 1, HERE)
    assert len(entries(cache)) == 1


def test_bad_data_is_not_mistaken_for_a_bad_cache(cache: Path) -> None:
    with pytest.raises(BadGraph, match="only 400 vertices"):
        chunked_graph(SPEC, 1, 401, HERE, cache)
    assert not entries(cache)


def test_mirrors_of_graph_parallelism(cache: Path) -> None:
    assert mirrors_for(SPEC, 1, HERE, cache) == 0
    graph = chunked_graph(SPEC, 4, 4, HERE, cache)
    assert mirrors_for(SPEC, 4, HERE, cache) == sum(graph.halo(c).size for c in range(4)) > 0
