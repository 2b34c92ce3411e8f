"""The accuracy grid: every cell can run, finished ones are kept, and the page says what the lines say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gnnpipe_api.load import parse_job

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import accuracy
from accuracy import Kept
from accuracy_grid import GRAPHS, MODES, SEEDS, Cell, ablation, bars, must_run, whole
from accuracy_page import BEGIN, END, write_page

CELL = Cell("cora", "gcn-4", "pipeline", 0)


def line(mode: str, seed: int, test: float, validation: list[float]) -> dict[str, Any]:
    cell = Cell("cora", "gcn-4", mode, seed)
    return {"cell": cell.name, "settings": "", "test": test, "val": max(validation), "validation": validation}


def test_every_cell_is_a_job_and_has_a_name_that_leads_back_to_it() -> None:
    for cell in {*whole(1), *bars(1), *must_run(1), *ablation(1)}:
        assert Cell.of(cell.name) == cell
        assert parse_job(cell.manifest(Path("data"))).spec.training.seed == 0


def test_modes_that_say_what_is_averaged_differ_from_the_others_in_nothing_else() -> None:
    for mode, other in (("averaged", "pipeline"), ("no-averaging", "pipeline"), ("exact-averaged", "exact")):
        ours, usual = (Cell("cora", "gcn-4", it, 3).manifest(Path())["spec"] for it in (mode, other))
        said = ours["training"].pop("averaging")
        assert said == {"mode": "none" if mode == "no-averaging" else "ema"}
        assert ours == usual  # which says nothing of averaging, or kept lines would count no more


def test_who_changes_a_manifest_changes_no_other() -> None:
    spec = CELL.manifest(Path())["spec"]
    spec["parallelism"]["chunks"] = 8
    spec["model"]["options"].clear()
    again = CELL.manifest(Path())["spec"]
    assert again["parallelism"]["chunks"] == 16
    assert again["model"]["options"] == {"norm": "layer"}


def test_what_must_run_has_every_cell_once() -> None:
    names = [cell.name for cell in must_run()]
    of_cora, of_generated, of_squirrel = 60 + 60 + 5, 20 + 20 + 5, 10 + 10 + 5  # seeds of the three modes
    wanted = 7 * (of_cora + of_generated + of_squirrel)  # models
    assert len(names) == len(set(names)) == wanted


def test_the_whole_grid_has_each_depth_of_each_model_on_each_graph_and_each_way_to_train() -> None:
    cells = list(whole(5))
    assert (
        {cell.graph for cell in cells}
        == set(GRAPHS)
        == {"cora", "citeseer", "pubmed", "squirrel", "generated"}
    )
    wanted = {f"{kind}-{layers}" for kind in ("gcn", "sage", "gcnii", "resgcn") for layers in (4, 8, 16, 32)}
    assert {cell.model for cell in cells} == wanted
    shapes = {
        (made["stages"], made.get("ways", 1), made.get("chunks"))
        for made in (MODES[cell.mode] for cell in cells)
    }
    pipelines = {(stages, 1, chunks) for stages in (2, 4) for chunks in (8, 16, 32)}
    assert shapes == {(1, 1, 1), (1, 2, None), (2, 2, 16)} | pipelines
    assert len(cells) == len({cell.name for cell in cells}) == 5 * 16 * 9 * 5


def test_fewer_seeds_can_be_asked_for() -> None:
    assert {(cell.mode, cell.seed) for cell in must_run(1)} == {(mode, 0) for mode in SEEDS["cora"]}
    assert {cell.seed for cell in must_run(6) if cell.mode == "hybrid"} == set(range(5))
    assert {cell.seed for cell in must_run(12) if cell.graph == "squirrel"} == set(range(10))


def test_runs_that_share_the_work_list_different_cells_and_each_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*patterns: str) -> list[str]:
        only = [word for pattern in patterns for word in ("--only", pattern)]
        assert accuracy.main(["--list", "--results", str(tmp_path), *only]) == 0
        return capsys.readouterr().out.split()

    parts = listed("cora/*", "generated/*") + listed("squirrel/*")
    assert sorted(parts) == sorted(set(listed()))


def test_a_cell_that_is_finished_is_not_trained_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "accuracy.jsonl")
    kept.keep(CELL, {"test": 0.8})
    before = kept.path.read_text()
    assert accuracy.main(["--only", CELL.name, "--results", str(tmp_path), "--no-report"]) == 0
    assert kept.path.read_text() == before


def test_a_run_sees_what_another_has_finished_meanwhile(tmp_path: Path) -> None:
    ours, theirs = Kept(tmp_path / "accuracy.jsonl"), Kept(tmp_path / "accuracy.jsonl")
    theirs.keep(CELL, {"test": 0.8})
    assert not ours.has(CELL)
    ours.read()
    assert ours.has(CELL)


@pytest.mark.parametrize("name", ["cora/gcn-4/pipeline", "cora/gcn-5/pipeline/0", "mars/gcn-4/exact/0"])
def test_a_cell_that_does_not_exist_is_refused_with_what_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert accuracy.main(["--cell", name]) == 2
    assert name in capsys.readouterr().out


def test_finished_cells_are_kept_until_their_settings_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "accuracy.jsonl"
    Kept(path).keep(CELL, {"test": 0.8})
    assert Kept(path).has(CELL)
    assert not Kept(path).has(Cell("cora", "gcn-4", "exact", 0))
    monkeypatch.setattr("accuracy_grid.PATIENCE", 7)
    changed = Kept(path)
    assert not changed.has(CELL)
    changed.keep(CELL, {"test": 0.9})
    assert [kept["test"] for kept in Kept(path).lines] == [0.9]


def test_a_pipeline_is_trained_again_when_auto_means_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, exact = tmp_path / "accuracy.jsonl", Cell("cora", "gcn-4", "exact", 0)
    for cell in (CELL, exact):
        Kept(path).keep(cell, {"test": 0.8})
    monkeypatch.setattr("accuracy.AUTO", (0.4,))
    assert [Kept(path).has(cell) for cell in (CELL, exact)] == [False, True]


def test_the_page_compares_seed_by_seed(tmp_path: Path) -> None:
    lines = [
        line("exact", 0, 0.80, [0.5, 0.8]),
        line("exact", 1, 0.82, [0.6, 0.8]),
        line("exact", 2, 0.10, [0.6, 0.8]),  # no pipeline to compare with
        line("pipeline", 0, 0.78, [0.1, 0.2, 0.8]),
        line("pipeline", 1, 0.80, [0.5, 0.6, 0.7]),
    ]
    page = tmp_path / "accuracy.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(lines, [line("pipeline", 0, 0.79, [0.7])], page)
    text = page.read_text()
    (row,) = [row for row in text.splitlines() if row.startswith("| gcn-4 |")]
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[2:4] == ["79.0 ± 1.4 (2)", "-2.0 ± 0.0"]
    assert cells[6] == "2 / 3 (1 of 2)"  # Cora is looked at each epoch
    assert cells[7:] == ["**no**", "**no** (1.50)"]  # of the one seed that got there
    assert "| cora/gcn-4/pipeline/0 | 79.0 | 78.0 | 79.0 ± 1.4 (2) |" in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert (tmp_path / "images" / "accuracy.png").exists()


def test_the_page_says_how_sure_it_is_that_a_pipeline_is_later(tmp_path: Path) -> None:
    early, late = [0.8], [0.1, 0.1, 0.8]
    lines = [
        *(line("exact", seed, 0.8, late) for seed in range(4)),
        *(line("pipeline", seed, 0.8, late) for seed in range(2)),
        *(line("pipeline", seed, 0.8, early) for seed in range(2, 4)),
        *(line("warm-20", seed, 0.9, early) for seed in range(2)),
    ]
    page = tmp_path / "accuracy.md"
    write_page(lines, [], page)
    (row,) = [row for row in page.read_text().splitlines() if row.startswith("| gcn-4 |")]
    assert row.endswith("| 3 / 2 | yes | yes (0.67 ± 0.19) |")  # 3, 3, 1 and 1 epochs where exact takes 3
    more = "| cora | gcn-4 | warm-20 | 90.0 ± 0.0 (2) | +10.0 ± 0.0 | 3 / 1 | yes (0.33 ± 0.00) |"
    assert more in page.read_text()
