"""`gnnpipe plan`: what a person asks and reads."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.load import load_job
from gnnpipe_trainer.cli import main
from gnnpipe_trainer.planning.choose import choose
from gnnpipe_trainer.planning.main import Sizes, make_planner

EXAMPLES = Path(__file__).parents[3] / "examples"
SIZES = ["--vertices", "1000000", "--edges", "30000000", "--features", "128"]

Manifest = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GNNPIPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(manifest: Manifest, tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest("gcnii", 8, stages=2, ways=2)))
    return str(path)


def test_the_table_has_a_row_for_every_way_to_use_the_gpus_and_says_what_to_take(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", file]) == ExitCode.DONE
    shown = capsys.readouterr().out
    for mode in ("pipeline", "hybrid", "graph"):
        assert sum(f" {mode} " in line.replace("→", " ") for line in shown.splitlines() if "2" in line) >= 1
    assert "Recommended: " in shown
    assert "--set spec.parallelism.stages=" in shown


def test_json_holds_the_same_and_can_be_read_by_programs(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", file, "--json", "--gpus", "4"]) == ExitCode.DONE
    answer = json.loads(capsys.readouterr().out)
    assert [p["plan"]["stages"] * p["plan"]["ways"] for p in answer["plans"]] == [4, 4, 4]
    assert {p["mode"] for p in answer["plans"]} == {"pipeline", "hybrid", "graph"}
    assert answer["recommended"] in answer["plans"]
    assert answer["reason"].endswith(".")
    for plan in answer["plans"]:
        assert set(plan["bytesPerEpoch"]) == {"pipeline", "graph", "gradient", "total"}
        assert len(plan["memoryBytes"]) == 4
        assert 0 <= plan["bubble"]["forecast"] < 1


def test_a_graph_that_is_not_here_is_planned_by_its_sizes_at_once_and_without_torch() -> None:
    code = (
        "import sys; from gnnpipe_trainer.cli import main; code = main(sys.argv[1:]);"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    job = str(EXAMPLES / "squirrel.yaml")  # whose file is on a cluster's volume
    ran = subprocess.run(
        [sys.executable, "-c", code, "plan", job, "--gpus", "16", *SIZES], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "cut estimated from the sizes" in ran.stdout
    # Processor time: the clock on the wall also counts whatever else the machine does.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--vertices", "100"],
            "--vertices, --edges and --features describe a graph together; give all three",
        ),
        (
            ["--vertices", "100", "--edges", "0", "--features", "3"],
            "--edges is 0; give at least 1",
        ),
        (["--plot", "plan.txt"], "--plot: plan.txt is no picture; let its name end with .png or .svg"),
        (["--plot", "/dev/null/plan.png"], "--plot: /dev/null/plan.png cannot be written"),
        (["--gpus", "0"], "--gpus is 0; give at least 1"),
        (["--gpus", "1000"], "--gpus: 1000 ranks cannot share 150 vertices and 8 layers; use fewer"),
        (["--hardware", "abacus"], "--hardware: 'abacus' is not known"),
    ],
)
def test_a_question_that_has_no_answer_gets_a_sentence(
    arguments: list[str], complaint: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", file, *arguments]) == ExitCode.INVALID
    shown = capsys.readouterr()
    assert shown.err.startswith(complaint)
    assert len(shown.err.splitlines()) == 1


def test_a_picture_is_drawn_of_the_pipeline_and_of_the_crossovers(file: str, tmp_path: Path) -> None:
    assert main(["plan", file, "--plot", str(tmp_path / "plan.png")]) == ExitCode.DONE
    for name in ("plan.png", "plan-crossover.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_slow_links_and_many_layers_speak_for_a_pipeline_quick_links_for_graph_parallelism() -> None:
    job = load_job(EXAMPLES / "squirrel.yaml", [])
    sizes = Sizes(1_000_000, 30_000_000, 128)
    slow = choose(make_planner(job, Path(), sizes, "h100-10g"), 32).best
    assert slow.plan.stages > 1
    quick = choose(make_planner(job, Path(), sizes, "h100-10g"), 4).best  # all in one machine, over NVLink
    assert quick.mode == "graph"


def test_what_does_not_fit_is_not_recommended() -> None:
    job = load_job(EXAMPLES / "squirrel.yaml", [])
    choice = choose(make_planner(job, Path(), Sizes(20_000_000, 600_000_000, 128), "a5000-100g"), 16)
    assert any(not forecast.fits for forecast in choice.forecasts)
    assert choice.best.fits or all(not forecast.fits for forecast in choice.forecasts)


def test_a_model_of_ones_own_is_planned_by_what_can_be_read_off_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", str(EXAMPLES / "custom-model.yaml"), "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["recommended"]["bytesPerEpoch"]["total"] > 0
