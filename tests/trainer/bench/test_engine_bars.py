"""The engine's bars: judged from kept figures, and the page says what the figures say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def row(name: str, seconds: float, rate: str | None = None, **more: Any) -> dict[str, Any]:
    plan = {"stages": 1, "ways": 1, "chunks": 1, "layersPerStage": [16]}
    return {
        "name": name,
        "rate": rate,
        "plan": plan,
        "seconds": {"median": seconds, "rounds": [[9.0, 9.0, seconds]]},
        "ratio": seconds,
        "cpuRatio": None,
        "lastLoss": 1.0,
        "peakMemoryBytes": [1_000_000],
        **more,
    }


def moved(kind: str, measured: int, formula: int, waiting: float) -> dict[str, Any]:
    return {
        "bytesPerEpoch": {kind: measured},
        "formulaBytes": {kind: formula},
        "waiting": waiting,
        "idealBubble": 0.0588,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    modes = [
        row("torch-geometric, edge_index", 6.0),
        row("torch-geometric, CSR, cached", 2.0),
        row("1 rank, 1 chunk", 1.0),
        row("pipeline, 2 stages", 0.5, **moved("pipeline", 100, 100, 0.04)),
        row("graph, 2 ways", 0.6, **moved("graph", 1400, 1400, 0.2)),
        row("pipeline, 2 stages", 0.5, "1gbit", **moved("pipeline", 100, 100, 0.04)),
        row("pipeline, 2 stages, zeros skipped", 0.3, "1gbit", **moved("pipeline", 60, 100, 0.04)),
        row("graph, 2 ways", 1.0, "1gbit", **moved("graph", 1400, 1400, 0.2)),
    ]
    case = {
        "command": "python benchmarks/engine.py --only gcn-16",
        "machine": {
            "processor": "P",
            "cores": 2,
            "memoryBytes": 2**34,
            "torch": "2",
            "torchGeometric": "2",
            "python": "3",
            "othersBusyCores": 0.1,
        },
        "job": {"spec": {"model": {"kind": "gcn", "layers": 16, "hidden": 64}}},
        "graph": {"vertices": 10, "edges": 20},
        "epochs": 3,
        "warmupEpochs": 2,
        "rounds": 1,
        "modes": modes,
    }
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "gcn-16.json").write_text(json.dumps(case))
    return tmp_path


WritePage = Callable[[Path, Path], None]


@pytest.fixture
def write_page(monkeypatch: pytest.MonkeyPatch) -> WritePage:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    engine = import_module("engine")

    def write(results: Path, page: Path) -> None:
        assert engine.main(["--docs", "--results", str(results), "--page", str(page)]) == 0

    return write


def test_each_bar_is_met_or_missed_by_its_figure(
    results: Path, tmp_path: Path, write_page: WritePage, capsys: pytest.CaptureFixture[str]
) -> None:
    write_page(results, tmp_path / "page.md")
    bars = json.loads((results / "engine.json").read_text())["bars"]
    met = {bar["what"]: bar["met"] for bar in bars}
    assert met == {
        "1 rank: times as fast as torch-geometric, edge_index": True,
        "1 rank: times as fast as torch-geometric, CSR, cached": False,
        "2 stages: times as fast as 1 rank": True,
        "2 stages, W split: waiting, below the ideal bubble": True,
        "2 stages against 2-way graph parallelism: times fewer bytes (wanted: by formula)": True,
        "2 stages against 2-way graph parallelism: times as fast, loopback": True,
        "2 stages against 2-way graph parallelism: times as fast, 1gbit": False,
        "2 stages, zeros skipped, against 2-way graph parallelism: times as fast, 1gbit": True,
    }
    assert "6 of 8 bars met, 2 missed" in capsys.readouterr().out


def test_turns_in_one_process_judge_what_the_engine_adds(
    results: Path, tmp_path: Path, write_page: WritePage
) -> None:
    kept = results / "engine" / "gcn-16.json"
    case = json.loads(kept.read_text())
    beside = {
        clock: {"rounds": [[9.0, 9.0, seconds]]} for clock, seconds in (("seconds", 1.0), ("cpuSeconds", 0.8))
    }
    cpu = {"rounds": [[9.0, 9.0, 1.0]]}
    case["modes"].append(row("engine by turns with the bare loop", 1.04, beside=beside, cpuSeconds=cpu))
    kept.write_text(json.dumps(case))
    write_page(results, tmp_path / "page.md")
    bars = json.loads((results / "engine.json").read_text())["bars"]
    bar = next(bar for bar in bars if "by turns" in bar["what"])
    assert (bar["figure"], bar["by_cpu"], bar["met"]) == (1.04, 1.25, True)


def test_a_clock_on_a_busy_machine_judges_nothing(
    results: Path, tmp_path: Path, write_page: WritePage
) -> None:
    kept = results / "engine" / "gcn-16.json"
    case = json.loads(kept.read_text())
    case["machine"]["othersBusyCores"] = 1.5
    kept.write_text(json.dumps(case))
    write_page(results, tmp_path / "page.md")
    bars = json.loads((results / "engine.json").read_text())["bars"]
    judged = [bar["what"] for bar in bars if bar["met"] is not None]
    assert judged == ["2 stages against 2-way graph parallelism: times fewer bytes (wanted: by formula)"]
    assert "The machine was busy" in (tmp_path / "page.md").read_text()


def test_the_page_keeps_what_was_written_by_hand(
    results: Path, tmp_path: Path, write_page: WritePage
) -> None:
    page = tmp_path / "page.md"
    write_page(results, page)
    page.write_text(f"by hand\n{page.read_text()}also by hand\n")
    write_page(results, page)
    text = page.read_text()
    assert text.startswith("by hand\n")
    assert text.endswith("also by hand\n")
    assert text.count("### The bars") == 1
    assert "Command: `python benchmarks/engine.py --only gcn-16`" in text


def test_the_page_in_docs_says_what_the_kept_figures_say(tmp_path: Path, write_page: WritePage) -> None:
    kept, page = tmp_path / "results", tmp_path / "benchmarks.md"
    shutil.copytree(ROOT / "benchmarks" / "results", kept)
    shutil.copy(ROOT / "docs" / "benchmarks.md", page)
    write_page(kept, page)
    assert page.read_text() == (ROOT / "docs" / "benchmarks.md").read_text()
    assert (kept / "engine.json").read_text() == (ROOT / "benchmarks" / "results" / "engine.json").read_text()
