"""`gnnpipe report`: one page that needs nothing but itself."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gnnpipe_trainer.cli import main
from gnnpipe_trainer.report_page import write_page
from gnnpipe_trainer.view import percent

TITLES = [
    "Loss",
    "Accuracy",
    "Learning rate",
    "Milliseconds per epoch",
    "Bytes sent per epoch",
    "Bubble",
    "Drift of history",
    "Staleness",
]


def test_report_draws_the_course_of_a_run_on_a_page(
    finished_run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(finished_run.out)]) == 0
    assert str(finished_run.out / "report.html") in capsys.readouterr().out
    page = (finished_run.out / "report.html").read_text()
    assert [title for title in TITLES if title not in page] == []
    assert percent(finished_run.result["accuracy"]["test"]) in page
    assert "One epoch as it ran" in page  # it was profiled
    assert "One epoch as it is meant" in page


def test_the_page_fetches_nothing(finished_run: Any) -> None:
    page = write_page(finished_run.out)
    assert page is not None
    named = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|url\(([^)]*)\)""", page.read_text())
    places = {place for pair in named for place in pair if place}
    assert places
    assert [place for place in places if not place.startswith(("#", "data:image/png"))] == []
    assert "<script" not in page.read_text()


def test_names_inside_one_picture_never_mean_something_in_another(finished_run: Any) -> None:
    page = write_page(finished_run.out)
    assert page is not None
    pictures = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    assert len(pictures) == len(TITLES) + 1
    used = [set(re.findall(r"(?:href=[\"']|url\()#(\w+)", picture)) for picture in pictures]
    assert sum(map(len, used)) == len(set.union(*used)) > 0


def test_a_run_under_way_has_a_page_too(finished_run: Any, tmp_path: Path) -> None:
    whole = (finished_run.out / "epochs.jsonl").read_text().splitlines()
    (tmp_path / "epochs.jsonl").write_text("\n".join(whole[:3]) + "\n" + whole[3][:20])
    page = write_page(tmp_path)
    assert page is not None
    assert "Under way: 3 epochs so far." in page.read_text()


def test_before_the_first_epoch_there_is_no_page(tmp_path: Path) -> None:
    assert write_page(tmp_path) is None


def test_a_name_cannot_become_markup(finished_run: Any, tmp_path: Path) -> None:
    shutil.copy(finished_run.out / "epochs.jsonl", tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({**finished_run.result, "job": "<b>bold</b>"}))
    page = write_page(tmp_path)
    assert page is not None
    assert "<b>bold" not in page.read_text()
    assert "&lt;b&gt;bold" in page.read_text()
