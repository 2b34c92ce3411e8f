"""`gnnpipe evaluate`: a model.pt needs no pipeline, and what does not fit is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnpipe_trainer.cli import main


def test_weights_of_a_pipelined_run_score_the_same_in_one_process(
    finished_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["evaluate", str(finished_run.manifest), "--model", str(finished_run.out / "model.pt")])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == finished_run.result["accuracy"]


def test_other_weights_score_otherwise(
    finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = torch.load(finished_run.out / "model.pt", weights_only=True)
    torch.save({name: -tensor for name, tensor in weights.items()}, tmp_path / "other.pt")
    assert main(["evaluate", str(finished_run.manifest), "--model", str(tmp_path / "other.pt")]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] != finished_run.result["accuracy"]


def _weights(change: str, path: Path) -> None:
    if change == "no file":
        return
    if change == "no weights":
        path.write_text("hello")
    elif change == "a list":
        torch.save([1, 2], path)
    elif change == "executable":
        torch.save({"a": Path("x")}, path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("no file", "cannot be read: No such file or directory"),
        ("no weights", "is not a file of weights"),
        ("executable", "is not a file of weights"),
        ("a list", "does not hold weights by name"),
    ],
)
def test_what_is_no_file_of_weights_is_refused_in_one_sentence(
    finished_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, sentence: str
) -> None:
    path = tmp_path / "model.pt"
    _weights(change, path)
    assert main(["evaluate", str(finished_run.manifest), "--model", str(path)]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("spec.model.hidden=8", "by spec.model and the graph"),
        ("spec.model.layers=6", "which spec.model asks for"),
        ("spec.model.layers=3", "which spec.model knows nothing of"),
    ],
)
def test_weights_of_another_model_are_refused_with_what_differs(
    finished_run: Any, capsys: pytest.CaptureFixture[str], override: str, sentence: str
) -> None:
    model = str(finished_run.out / "model.pt")
    assert main(["evaluate", str(finished_run.manifest), "--model", model, "--set", override]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "evaluate with the manifest that it was trained with" in said
