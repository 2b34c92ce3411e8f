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
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.binaries import cache_folder
from harness.cluster import Cluster
from harness.debian import Apt
from harness.processes import await_ready, free_ports, start
from jobs import Jobs
from project_images import PROJECT

SCRAPE_SECONDS = 1


@pytest.fixture
def prometheus(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that finds operator and pods as docs/install.md says: by their ports."""
    plane = cluster.control_plane
    found = {
        "role": "pod",
        "api_server": plane.url,
        "tls_config": {
            "ca_file": str(plane.authority.root.certificate),
            "cert_file": str(plane.admin.certificate),
            "key_file": str(plane.admin.key),
        },
    }
    by_port = {
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": "monitor|metrics",
        "action": "keep",
    }
    scrape = {
        "job_name": "gnnpipe",
        "honor_labels": True,
        "kubernetes_sd_configs": [found],
        "relabel_configs": [by_port],
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
    yield url
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


def values(prometheus: str, query: str) -> list[float]:
    with urllib.request.urlopen(
        f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    ) as found:
        return [float(series["value"][1]) for series in json.load(found)["data"]["result"]]


def test_every_panel_of_the_dashboard_has_data_and_series_end_with_their_job(
    prometheus: str, jobs: Jobs, example: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    began = time.time()
    name = jobs.apply(example("quickstart", epochs=80))
    namespace = jobs.kubectl.namespace
    own = f'{{job="{name}",namespace="{namespace}"}}'
    jobs.until("it is scraped", lambda: len(values(prometheus, f"gnnpipe_epoch{own}")) == 2, 120)
    status = jobs.until_phase(name, "Succeeded", within_seconds=250)
    jobs.until(
        "the operator's figures are the final ones",
        lambda: values(prometheus, f"gnnpipe_job_epoch{own}") == [float(status["epoch"])],
        20,
    )
    picture = tmp_path / "dashboard.png"
    drawn = subprocess.run(
        [
            *(sys.executable, PROJECT / "charts/draw_dashboard.py", prometheus, "--job", name),
            *("--namespace", str(namespace), "--out", picture, "--rate-seconds", str(4 * SCRAPE_SECONDS)),
            *("--start", str(began), "--end", str(time.time())),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert drawn.returncode == 0, drawn.stderr
    assert picture.stat().st_size > 50_000
    jobs.delete_all()
    jobs.until("its series end", lambda: not values(prometheus, f"gnnpipe_job_phase{own}"), 30)
