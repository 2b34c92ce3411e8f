"""A finished run tells how quick its machines are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.cli import main
from gnnpipe_trainer.planning.forecast import Planner
from gnnpipe_trainer.planning.from_run import WARMUP_EPOCHS, fit_to_run, read_run
from gnnpipe_trainer.planning.hardware import CPU, Costs, Link
from gnnpipe_trainer.planning.main import make_planner
from gnnpipe_trainer.report import WARMUP_EPOCHS as REPORTED_WARMUP

SLOW = replace(
    CPU,
    costs=Costs(**{unit: 3 * cost for unit, cost in asdict(CPU.costs).items()}),
    near=Link(CPU.near.bytes_per_second / 500, CPU.near.latency_seconds),
)


def leave_run(folder: Path, planner: Planner, stages: int, ways: int) -> None:
    """What a run of this plan would leave on the planner's machines."""
    plan = planner.plan(stages, ways)
    forecast = planner.forecast(plan)
    idle = [forecast.epoch.bubble] * plan.ranks
    line = {"seconds": forecast.seconds, "idle": idle}
    cold = {"seconds": 100 * forecast.seconds, "idle": idle}
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"job": planner.job.name, "plan": plan.as_dict()}))
    lines = [cold] * WARMUP_EPOCHS + [line] * 5
    (folder / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(("stages", "ways"), [(1, 1), (3, 1), (1, 2), (2, 2)])
def test_fitted_to_a_run_its_forecast_is_what_the_run_took(
    stages: int, ways: int, job: Callable[..., GNNPipeJob], tmp_path: Path
) -> None:
    asked = job("gcnii", 6, stages=stages, ways=ways)
    planner = replace(make_planner(asked, tmp_path), hardware=CPU)
    truth = replace(planner, hardware=SLOW)
    leave_run(tmp_path / "run", truth, stages, ways)
    run = read_run(tmp_path / "run", asked.name, 6)
    fitted = fit_to_run(planner, run, tmp_path / "run")
    assert planner.forecast(run.plan).seconds < 0.5 * run.seconds
    assert fitted.forecast(run.plan).seconds == pytest.approx(run.seconds, rel=0.02)


def test_a_run_tells_compute_and_link_apart(job: Callable[..., GNNPipeJob], tmp_path: Path) -> None:
    planner = replace(make_planner(job("gcnii", 6, stages=3), tmp_path), hardware=CPU)
    leave_run(tmp_path / "run", replace(planner, hardware=SLOW), 3, 1)
    run = read_run(tmp_path / "run", planner.job.name, 6)
    found = fit_to_run(planner, run, tmp_path / "run").hardware
    assert found.costs.edge == pytest.approx(SLOW.costs.edge, rel=0.05)
    assert found.near.bytes_per_second < CPU.near.bytes_per_second / 5


def test_warm_up_is_what_the_report_leaves_out() -> None:
    assert WARMUP_EPOCHS == REPORTED_WARMUP


def test_a_folder_that_tells_nothing_about_the_job_gets_a_sentence(
    manifest: Callable[..., dict[str, Any]],
    job: Callable[..., GNNPipeJob],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest("gcnii", 6, stages=2)))
    planner = make_planner(job("gcnii", 4, stages=2), tmp_path)
    leave_run(tmp_path / "shallow", planner, 2, 1)
    for folder, complaint in (
        (tmp_path / "nothing", "there is no finished run in"),
        (tmp_path / "shallow", "holds a run of planned with 4 layers, not of planned with 6"),
    ):
        assert main(["plan", str(path), "--from-run", str(folder)]) == ExitCode.INVALID
        shown = capsys.readouterr().err
        assert complaint in shown
        assert len(shown.splitlines()) == 1


def test_the_plan_says_which_run_it_was_fitted_to(
    manifest: Callable[..., dict[str, Any]],
    job: Callable[..., GNNPipeJob],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest("gcnii", 6, stages=2)))
    leave_run(tmp_path / "run", make_planner(job("gcnii", 6, stages=2), tmp_path), 2, 1)
    assert main(["plan", str(path), "--json", "--from-run", str(tmp_path / "run")]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["hardware"].endswith(f"fitted to {tmp_path / 'run'}")
