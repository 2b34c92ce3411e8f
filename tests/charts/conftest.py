"""Helm, promtool and an API server, all real."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from harness import binaries
from harness.controlplane import ControlPlane
from harness.debian import Apt
from harness.errors import NoCluster
from harness.fixtures import skip_or_fail

# rendered_chart.py beside this file; generate.py and its like, which are scripts and in no package.
sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "charts")]

from rendered_chart import Helm


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    try:
        binary = binaries.find(["helm"])["helm"]
    except NoCluster as error:
        skip_or_fail(str(error))
        raise
    return Helm(binary, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def chart_cluster() -> Iterator[ControlPlane]:
    """A control plane apart from the other rooms': the definition is the cluster's, and comes and goes here."""
    try:
        running = ControlPlane(scheduler=False).start()
    except NoCluster as error:
        skip_or_fail(str(error))
        raise
    yield running
    running.stop()


@pytest.fixture(scope="session")
def prometheus_folder() -> Path:
    """Where prometheus and promtool are: installed, kept from an earlier run, or unpacked from Debian's package."""
    installed = shutil.which("promtool")
    if installed and shutil.which("prometheus", path=str(Path(installed).parent)):
        return Path(installed).parent
    folder = binaries.cache_folder().parent / "prometheus"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "root/usr/bin"
    with FileLock(folder / "unpack.lock"):
        if not (kept / "promtool").exists():
            try:
                Apt(folder / "apt").unpack(["prometheus"], folder / "root")
            except NoCluster as error:
                skip_or_fail(f"no promtool (`apt-get install prometheus`): {error}")
    return kept


@pytest.fixture(scope="session")
def promtool(prometheus_folder: Path) -> Path:
    return prometheus_folder / "promtool"
