"""Where binaries are looked for, and what is said where there are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import binaries
from harness.errors import NoCluster

PROJECT = Path(__file__).parents[2]


def fake_binaries(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no folder given by the person."""
    monkeypatch.setenv("GNNPIPE_CLUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return binaries.cache_folder()


def test_the_folder_that_the_person_gives_comes_before_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_binaries(cache / "bin", "etcd", "kubectl")
    given = fake_binaries(tmp_path / "given", "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(given))
    assert binaries.find(["etcd", "kubectl"]) == {"etcd": given / "etcd", "kubectl": cache / "bin/kubectl"}


@pytest.mark.usefixtures("cache")
def test_without_debians_packages_the_error_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster, match="KUBEBUILDER_ASSETS"):
        binaries.find(["etcd"])


@pytest.mark.parametrize(("required", "exit_code", "word"), [("0", 0, "SKIPPED"), ("1", 1, "ERROR")])
def test_without_a_cluster_tests_are_skipped_unless_one_is_required(
    cache: Path, tmp_path: Path, required: str, exit_code: int, word: str
) -> None:
    fake_binaries(cache / "bin", "kubectl", "helm")
    test = "tests/cluster/test_control_plane.py::test_the_server_reports_a_released_version"
    settings = {"PATH": str(tmp_path), "GNNPIPE_REQUIRE_CLUSTER": required}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        cwd=PROJECT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    summary = done.stdout.partition("short test summary info")[2]
    assert done.returncode == exit_code
    assert word in summary
    assert "KUBEBUILDER_ASSETS" in done.stdout
