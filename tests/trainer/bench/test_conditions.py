"""benchmarks/conditions.py: one thing is changed at a time, and what is compared is of the same seed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnpipe_api.load import parse_job

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import conditions
from conditions import CONDITIONS, Condition, Kept, at_random, cut_by, key_of, main, merged

from gnnpipe_trainer.graph.partition import partition

SMALL = {"source": "synthetic", "vertices": 300, "averageDegree": 8, "classes": 3}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conditions.Cell.manifest.__globals__["GRAPHS"], "generated", SMALL)
    monkeypatch.setattr("accuracy_grid.EPOCHS", 6)
    monkeypatch.setattr("accuracy_grid.LONGER", {})


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda it: f"{it.group}: {it.name}")
def test_every_condition_is_a_job_whatever_the_rule(condition: Condition) -> None:
    for cell in condition.cells:
        for rule in condition.rules:
            spec = parse_job(condition.manifest(cell, rule, 300, Path("data"))).spec
            assert (spec.parallelism.stages == 1) == (rule == "exact")
            assert spec.training.seed == 300


def test_exact_training_is_trained_once_for_all_cuts() -> None:
    by_chunks, by_ways = (next(it for it in CONDITIONS if it.group == group) for group in ("chunks", "ways"))
    assert key_of(by_chunks, "cora/gcn-4", "exact", 1) == key_of(by_ways, "cora/gcn-4", "exact", 1)
    assert key_of(by_chunks, "cora/gcn-4", "default", 1) != key_of(by_ways, "cora/gcn-4", "default", 1)
    constant, cosine = (it for it in CONDITIONS if it.name in ("constant", "cosine"))
    assert key_of(constant, "cora/gcn-4", "exact", 1) != key_of(cosine, "cora/gcn-4", "exact", 1)


@pytest.mark.parametrize("other", [merged, at_random])
def test_other_cuts_give_each_chunk_about_as_many_vertices(other: Any) -> None:
    ring = np.arange(400)
    indices = np.stack([(ring - 1) % 400, (ring + 1) % 400], axis=1).reshape(-1)
    indptr = np.arange(0, 801, 2)
    found, usual = other(indptr, indices, 1, 8), partition(indptr, indices, 1, 8)
    assert sorted(set(found.tolist())) == list(range(8))
    assert np.bincount(found).max() < 2 * np.bincount(usual).max()

    def cut_edges(chunks: Any) -> int:
        return int((chunks[np.repeat(ring, 2)] != chunks[indices]).sum())

    assert cut_edges(found) > cut_edges(usual)


@pytest.mark.usefixtures("small")
def test_a_run_is_kept_and_the_page_compares_seed_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, results = tmp_path / "page.md", tmp_path / "conditions.jsonl"
    page.write_text("before\n<!-- conditions -->\n<!-- end of conditions -->\nafter\n")
    only = ["--only", "cut/METIS/generated/gcn-8", "--only", "cut/at random/generated/gcn-8"]
    asked = [*only, "--seeds", "2", "--results", str(results), "--page", str(page)]
    assert main(asked) == 0
    lines = Kept(results).lines
    assert len(lines) == 2 * (1 + 2 + 2)  # exact once for both cuts
    shares = {line["condition"]: line["staleEdges"] for line in lines.values() if line["rule"] == "default"}
    assert shares["at random"] > 1.2 * shares["METIS"]
    before = results.read_text()
    assert main(asked) == 0
    assert results.read_text() == before
    text = page.read_text()
    assert "### Cut" in text
    (row,) = [row for row in text.splitlines() if row.startswith("| at random |")]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    exact, ours = (
        [line["test"] for line in lines.values() if (line["rule"], line["condition"]) == key]
        for key in (("exact", ""), ("default", "at random"))
    )
    mean = 100 * sum(a - b for a, b in zip(ours, exact, strict=True)) / 2
    assert cells[:4] == ["at random", "generated/gcn-8", f"{shares['at random']:.0%}", "2"]
    assert cells[5].startswith(f"{mean:+.1f}")


def test_a_graph_is_cut_as_usual_again_afterwards() -> None:
    import gnnpipe_trainer.graph.chunks as chunks

    with cut_by(at_random):
        assert chunks.partition is at_random
    assert chunks.partition is partition
