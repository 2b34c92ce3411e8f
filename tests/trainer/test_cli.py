"""The command line: what it prints, where, and with which exit code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.crd import crd
from gnnpipe_api.reference import manifest_reference
from gnnpipe_trainer.cli import main

QUICKSTART = str(Path(__file__).parents[2] / "examples" / "quickstart.yaml")
TINY = [
    "spec.graph={source: synthetic, vertices: 60, averageDegree: 4, classes: 3, features: 4}",
    "spec.model={kind: gcn, layers: 2, hidden: 4}",
    "spec.training={epochs: 2, evaluateEvery: 1, device: cpu}",
    "spec.parallelism={}",
]


def test_validate_says_how_a_right_manifest_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", QUICKSTART, "--set", "spec.model.layers=15"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{QUICKSTART} is valid: stages 2 (layers 8+7), ways 1, chunks 8.\n"


def test_validate_takes_no_guess_at_what_the_planner_will_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", QUICKSTART, "--set", "spec.parallelism.stages=auto"]) == ExitCode.DONE
    assert "what is auto is settled by the planner when the job starts." in capsys.readouterr().out


def test_validate_tells_each_mistake_on_a_line_of_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--set", "spec.trainig.epochs=3", "--set", "spec.parallelism.stages=99"]
    assert main(["validate", QUICKSTART, *wrong]) == ExitCode.INVALID
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "spec.trainig: unknown field; did you mean training?",
        "spec.parallelism.stages: 99 stages need at least 99 layers, but spec.model.layers is 16; "
        "use fewer stages or more layers.",
    ]


@pytest.mark.parametrize("command", ["run", "validate", "plan", "evaluate"])
def test_every_command_that_takes_a_job_refuses_a_wrong_one_before_it_does_anything(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "job.yaml")
    model = ["--model", "model.pt"] if command == "evaluate" else []
    assert main([command, missing, *model]) == ExitCode.INVALID
    assert capsys.readouterr().err == f"There is no file {missing}.\n"


def test_crd_prints_what_kubectl_applies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == ExitCode.DONE
    assert yaml.safe_load(capsys.readouterr().out) == crd()
    assert main(["crd", "--cel"]) == ExitCode.DONE
    assert yaml.safe_load(capsys.readouterr().out) == crd(cel=True)


def test_docs_prints_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == ExitCode.DONE
    assert capsys.readouterr().out == manifest_reference()


def test_an_unknown_command_is_refused_with_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2
    assert "run" in capsys.readouterr().err


def test_what_needs_no_torch_does_not_wait_for_it() -> None:
    loaded = (
        "import sys; from gnnpipe_trainer.cli import main; main(['validate', sys.argv[1]]);"
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", loaded, QUICKSTART], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines()[-1] == "[]"


def test_a_pipe_that_closes_early_is_no_error() -> None:
    piped = f'{sys.executable} -m gnnpipe_trainer.cli crd | true; echo "${{PIPESTATUS[0]}}"'
    shown = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=True)
    assert (shown.stdout, shown.stderr) == ("0\n", "")


def test_data_that_is_wrong_ends_with_the_code_that_is_never_retried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = f"spec.graph={{source: npz, path: {tmp_path / 'none.npz'}}}"
    assert main(["run", QUICKSTART, "--set", graph, "--out", str(tmp_path / "out")]) == ExitCode.INVALID
    complaint = capsys.readouterr().err
    assert "none.npz" in complaint
    assert len(complaint.splitlines()) == 1


def test_a_broken_model_is_told_in_a_sentence_also_where_auto_needs_it_before_any_rank_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("def make(**sizes):\n    return 1 / 0\n")
    manifest = yaml.safe_load(Path(QUICKSTART).read_text())
    manifest["spec"]["model"] = {"kind": "broken:make", "layers": 4, "hidden": 8}
    manifest["spec"]["parallelism"] = {"stages": "auto", "chunks": "auto"}
    manifest["spec"]["graph"] = {"source": "synthetic", "vertices": 100, "averageDegree": 4, "classes": 2}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest))
    assert main(["run", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out")]) == ExitCode.INVALID
    complaint = capsys.readouterr().err
    assert "broken:make" in complaint
    assert "Traceback" not in complaint


def test_run_leaves_a_result_that_report_shows_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [part for change in TINY for part in ("--set", change)]
    ran = subprocess.run(
        [sys.executable, "-m", "gnnpipe_trainer.cli", "run", QUICKSTART, *changes, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["epochs"], result["historyGradients"]) == (2, None)
    assert main(["report", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out.splitlines()[-9:] == ran.stdout.splitlines()[-9:]


def test_run_averages_weights_where_it_is_told_to(tmp_path: Path) -> None:
    told = [*TINY, "spec.training.averaging.mode=ema", "spec.training.averaging.decay=0.5"]
    changes = [part for change in told for part in ("--set", change)]
    assert main(["run", QUICKSTART, *changes, "--out", str(tmp_path)]) == ExitCode.DONE
    assert json.loads((tmp_path / "result.json").read_text())["weightAveraging"] == "ema"


def test_report_of_a_folder_without_a_result_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == ExitCode.INVALID
    assert capsys.readouterr().err == (
        f"There is no result.json in {tmp_path}; name the --out folder of a finished run.\n"
    )
