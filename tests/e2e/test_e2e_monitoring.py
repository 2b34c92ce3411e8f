"""A real Prometheus scrapes a real job: every query of the dashboard has an answer, and is drawn."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.binaries import cache_folder
from harness.debian import Apt
from harness.processes import await_ready, free_ports, start
from installation import Installation
from jobs import Jobs
from project_images import PROJECT

SCRAPE_SECONDS = 1


@dataclass(frozen=True)
class Prometheus:
    """Debian's knows nothing of Kubernetes, so it is told whom to scrape, by the rule of docs/install.md."""

    url: str
    targets: Path

    def scrape(self, pods: list[dict[str, Any]]) -> None:
        """Pods by the ports that they name."""
        found = [
            f"{pod['status']['podIP']}:{port['containerPort']}"
            for pod in pods
            for container in pod["spec"]["containers"]
            for port in container["ports"]
            if port["name"] in ("monitor", "metrics")
        ]
        beside = self.targets.with_suffix(".new")
        beside.write_text(json.dumps([{"targets": found}]))
        beside.rename(self.targets)

    def values(self, query: str) -> list[float]:
        asked = urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{asked}") as found:
            return [float(series["value"][1]) for series in json.load(found)["data"]["result"]]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    targets = tmp_path / "targets.json"
    scrape = {
        "job_name": "gnnpipe",
        "honor_labels": True,
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
    }
    times = {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
    settings = tmp_path / "prometheus.yml"
    settings.write_text(yaml.safe_dump({"global": times, "scrape_configs": [scrape]}))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [
        prometheus_binary(),
        f"--config.file={settings}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = start("prometheus", command, tmp_path)
    await_ready(process, lambda: answers(f"{url}/-/ready"), 60)
    yield Prometheus(url, targets)
    process.stop()


def prometheus_binary() -> Path:
    """Installed, or unpacked from Debian's package into the cache, where the chart's tests look too."""
    installed = shutil.which("prometheus")
    if installed:
        return Path(installed)
    folder = cache_folder().parent / "prometheus"
    kept = folder / "root/usr/bin/prometheus"
    if not kept.exists():
        Apt(folder / "apt").unpack(["prometheus"], folder / "root")
    return kept


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def test_every_panel_of_the_dashboard_has_data_and_series_end_with_their_job(
    prometheus: Prometheus,
    installation: Installation,
    jobs: Jobs,
    example: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """The job would train for an hour: however quick the machine is, it goes on until all has been seen."""
    began = time.time()
    name = jobs.apply(example("quickstart", epochs=100_000))
    jobs.until_phase(name, "Running", within_seconds=60)
    prometheus.scrape([installation.operator_pod(), *jobs.pods(name).values()])
    picture = tmp_path / "dashboard.png"

    def draw() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *(sys.executable, PROJECT / "charts/draw_dashboard.py", prometheus.url, "--job", name),
                *("--namespace", str(jobs.kubectl.namespace), "--out", picture),
                *("--rate-seconds", str(4 * SCRAPE_SECONDS)),
                *("--start", str(began), "--end", str(time.time())),
            ],
            capture_output=True,
            text=True,
            check=False,
        )

    deadline = time.monotonic() + 120
    while (drawn := draw()).returncode != 0 and time.monotonic() < deadline and not jobs.ended(name):
        pass  # each look takes some seconds
    assert drawn.returncode == 0, f"{drawn.stderr}\n{jobs.picture()}"
    assert picture.stat().st_size > 50_000
    jobs.delete_all()
    own = series_of(jobs, name)
    jobs.until("its series end", lambda: not prometheus.values(f"gnnpipe_job_phase{own}"), 30)


def test_a_job_that_is_done_keeps_its_last_figures_until_it_is_deleted(
    prometheus: Prometheus,
    installation: Installation,
    jobs: Jobs,
    example: Callable[..., dict[str, Any]],
) -> None:
    """However short it was: nobody need have asked it while it ran."""
    name = jobs.apply(example("quickstart", epochs=5))
    prometheus.scrape([installation.operator_pod()])
    status = jobs.until_phase(name, "Succeeded", within_seconds=400)
    own = series_of(jobs, name)
    jobs.until("all epochs are seen", lambda: prometheus.values(f"gnnpipe_job_epoch{own}") == [5.0], 30)
    assert prometheus.values(f"gnnpipe_job_progress_ratio{own}") == [1.0]
    assert prometheus.values(f"gnnpipe_job_bubble_ratio{own}") == [status["bubble"]]
    assert prometheus.values(f"gnnpipe_job_bubble_ideal_ratio{own}") == [status["bubbleIdeal"]]
    sent = prometheus.values(f"sum by (kind) (gnnpipe_job_comm_bytes_per_epoch{own})")
    assert sorted(sent) == sorted(status["bytesPerEpoch"].values())
    assert status["bytesPerEpoch"]["pipeline"] > 0
    jobs.delete_all()
    jobs.until("its series end", lambda: not prometheus.values(f"gnnpipe_job_phase{own}"), 30)


def series_of(jobs: Jobs, name: str) -> str:
    return f'{{job="{name}",namespace="{jobs.kubectl.namespace}"}}'
