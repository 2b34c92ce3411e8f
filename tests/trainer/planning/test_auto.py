"""`auto`: settled by the planner where the graph can be seen, on a laptop and in the pod that plans."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.load import parse_job
from gnnpipe_operator.planning import read_plan
from gnnpipe_trainer.planning.choose import NoPlan, ranks_to_try
from gnnpipe_trainer.planning.settle import settle

Manifest = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def uncalibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GNNPIPE_CACHE", str(tmp_path / "cache"))


def test_auto_is_settled_by_the_planner_and_keeps_what_the_manifest_fixes(
    manifest: Manifest, tmp_path: Path
) -> None:
    job = parse_job(manifest("gcnii", 8, stages="auto", ways=2, chunks="auto"))
    settled = settle(job, tmp_path, most_ranks=4)
    cut = settled.job.spec.parallelism
    assert (cut.has_auto, cut.ways) == (False, 2)
    assert (cut.stages, cut.chunks) == (settled.plan.stages, settled.plan.chunks)
    assert settled.plan.stages <= 2
    assert settled.reason.endswith(".")


@pytest.mark.parametrize(
    "parallelism",
    [
        {"stages": "auto", "ways": "auto", "chunks": 6},
        {"stages": "auto", "ways": 3, "chunks": 6},
        {"stages": 2, "ways": "auto", "chunks": "auto"},
        {"stages": 8, "ways": 1, "chunks": "auto"},
    ],
)
def test_every_number_beside_auto_stays_also_where_it_takes_more_than_this_machine_has(
    parallelism: dict[str, Any], manifest: Manifest, tmp_path: Path
) -> None:
    job = parse_job(manifest("gcnii", 8, **parallelism))
    plan = settle(job, tmp_path, most_ranks=2).plan
    numbers = {"stages": plan.stages, "ways": plan.ways, "chunks": plan.chunks}
    assert {name: numbers[name] for name in numbers if parallelism[name] != "auto"} == {
        name: number for name, number in parallelism.items() if number != "auto"
    }


def test_a_graph_that_is_too_small_for_the_numbers_beside_auto_is_told(
    manifest: Manifest, tmp_path: Path
) -> None:
    job = parse_job(manifest("gcnii", 8, stages="auto", ways=1000))
    with pytest.raises(NoPlan, match=r"ways 1000 .* suits 150 vertices; use smaller numbers"):
        settle(job, tmp_path, most_ranks=4)


@pytest.mark.parametrize(
    ("most", "fixed", "tried"),
    [
        (1, 1, [1]),
        (6, 1, [1, 2, 3, 4, 5, 6]),
        (20, 1, [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20]),
        (64, 4, [4, 8, 12, 16, 20, 24, 28, 32, 48, 64]),
    ],
)
def test_auto_tries_every_small_number_of_ranks_and_fewer_large_ones(
    most: int, fixed: int, tried: list[int]
) -> None:
    assert ranks_to_try(most, fixed) == tried


# --- the pod that plans


@pytest.fixture
def planner_pod(tmp_path: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """`gnnpipe planner` as a process, with the environment that the operator writes."""

    def start(told: dict[str, Any] | str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "GNNPIPE_MANIFEST": told if isinstance(told, str) else json.dumps(told),
            "GNNPIPE_TERMINATION_MESSAGE": str(tmp_path / "termination-log"),
        }
        command = [sys.executable, "-m", "gnnpipe_trainer.cli", "planner"]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE)

    return start


def test_the_last_word_of_the_planning_pod_is_a_plan_that_the_operator_takes(
    planner_pod: Any, manifest: Manifest, tmp_path: Path
) -> None:
    asked = manifest("gcnii", 8, stages="auto", ways="auto", chunks="auto", parallelism={"maxRanks": 2})
    pod = planner_pod(asked)
    _, log = pod.communicate(timeout=120)
    assert pod.returncode == ExitCode.DONE, log
    plan, reason = read_plan(parse_job(asked), (tmp_path / "termination-log").read_text())
    settled = settle(parse_job(asked), tmp_path, most_ranks=2)
    assert (plan.stages, plan.ways, plan.chunks) == (
        settled.plan.stages,
        settled.plan.ways,
        settled.plan.chunks,
    )
    assert reason == settled.reason
    assert f"Planned: {plan.in_words()}. {reason}" in log.decode()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"graph": {"source": "npz", "path": "/data/none.npz"}}, "/data/none.npz"),
        ({"model": {"kind": "nowhere:make"}}, "nowhere"),
        ({"parallelism": {"ways": 1000}}, "suits 150 vertices"),
        ("{", "GNNPIPE_MANIFEST is not JSON"),
    ],
    ids=["graph", "model", "numbers", "environment"],
)
def test_a_mistake_that_the_planning_pod_finds_is_final_and_told_in_its_last_word(
    planner_pod: Any, manifest: Manifest, tmp_path: Path, changes: Any, sentence: str
) -> None:
    told = changes
    if isinstance(changes, dict):
        told = manifest("gcnii", 8, stages="auto", **changes)
        told["spec"].update({"graph": changes["graph"]} if "graph" in changes else {})
    pod = planner_pod(told)
    _, log = pod.communicate(timeout=120)
    assert pod.returncode == ExitCode.INVALID, log
    assert sentence in (tmp_path / "termination-log").read_text()


def test_a_planning_pod_that_is_asked_to_stop_says_so_with_its_exit_code(
    planner_pod: Any, manifest: Manifest
) -> None:
    large = {"vertices": 200_000, "averageDegree": 30}
    pod = planner_pod(manifest("gcnii", 64, stages="auto", ways="auto", graph=large))
    assert b"Planning for at most 4 ranks" in pod.stderr.readline()
    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=120)
    assert pod.returncode == ExitCode.PREEMPTED
