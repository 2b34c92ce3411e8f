"""The dashboard's panels, drawn from a real Prometheus."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from draw_dashboard import Question, draw
from example_series import SCRAPE_SECONDS, SCRAPES, as_open_metrics
from harness.processes import await_ready, free_ports, start
from panels import AT_A_GLANCE, ONE_JOB, Panel

START = int(time.time()) - 2 * SCRAPES * SCRAPE_SECONDS
END = START + (SCRAPES - 1) * SCRAPE_SECONDS


@pytest.fixture(scope="module")
def prometheus(prometheus_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that holds the example's series; its URL."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "series.txt").write_text(as_open_metrics(START))
    (folder / "prometheus.yml").write_text("global: {}\n")
    fill = [
        str(prometheus_folder / "promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "series.txt",
        "data",
    ]
    subprocess.run(fill, cwd=folder, check=True, capture_output=True)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    process = start(
        "prometheus",
        [
            prometheus_folder / "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        folder,
    )
    await_ready(process, lambda: answers(f"{url}/-/ready"), 30)
    yield url
    process.stop()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def question(prometheus: str) -> Question:
    return Question(prometheus, "a", "j", START, END, rate_seconds=4 * SCRAPE_SECONDS)


def test_every_panel_is_drawn_from_what_prometheus_answers(question: Question, tmp_path: Path) -> None:
    picture = tmp_path / "dashboard.png"
    assert draw(question, [*AT_A_GLANCE, *ONE_JOB], picture) == []
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_lines_are_named_by_their_labels_and_hold_the_scraped_values(question: Question) -> None:
    (line,) = question.ask('max by (split) (gnnpipe_accuracy{job="$job"})', "{{split}}")
    assert line.name == "test"
    assert line.values[0] == pytest.approx(0.1)
    assert line.values[-1] == pytest.approx(0.3)


def test_queries_that_nothing_answers_are_named(question: Question, tmp_path: Path) -> None:
    nothing = Panel("Nothing", "timeseries", [("gnnpipe_no_such_metric", "")])
    assert draw(question, [nothing], tmp_path / "nothing.png") == ["gnnpipe_no_such_metric"]
