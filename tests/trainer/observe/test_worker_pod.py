"""`gnnpipe worker`: pods as processes on loopback, with the environment that the operator writes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_pool import free_port

from gnnpipe_api.contract import ExitCode
from gnnpipe_operator.progress import read_progress
from gnnpipe_trainer.launch import Place
from gnnpipe_trainer.pod import MESSAGE_BYTES, leave_word
from gnnpipe_trainer.store import answers
from gnnpipe_trainer.worker_pod import main, summary


class Pod:
    """One worker process; its folder holds what the pod's volumes would."""

    def __init__(
        self, folder: Path, manifest: Any, stage: int, port: int, master: str = "127.0.0.1", **more: str
    ) -> None:
        folder.mkdir()
        self.out, self.message = folder / "out", folder / "termination-log"
        self.monitor_port = free_port()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GNNPIPE_MANIFEST": manifest if isinstance(manifest, str) else json.dumps(manifest),
            "GNNPIPE_STAGE": str(stage),
            "GNNPIPE_ATTEMPT": "0",
            "GNNPIPE_MASTER_ADDR": master,
            "GNNPIPE_MASTER_PORT": str(port),
            "GNNPIPE_OUT": str(self.out),
            "GNNPIPE_NAMESPACE": "team",
            "GNNPIPE_CACHE": str(folder / "cache"),
            "GNNPIPE_TERMINATION_MESSAGE": str(self.message),
            "GNNPIPE_MONITOR_ADDRESS": f"127.0.0.1:{self.monitor_port}",
            **more,
        }
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gnnpipe_trainer.cli", "worker"],
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> int:
        return self.process.wait(timeout=240)

    def ends_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def ask(self, path: str) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}{path}", timeout=5) as answer:
                content: dict[str, Any] = json.load(answer)
                return content
        except OSError:
            return None


@contextmanager
def pods(*started: Pod) -> Iterator[tuple[Pod, ...]]:
    """None outlives its test."""
    try:
        yield started
    finally:
        for pod in started:
            if pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()


@pytest.fixture
def pod_here(job: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This very process in a pod's environment; gives the folder of its termination message."""
    for name, value in {
        "GNNPIPE_MANIFEST": json.dumps(job),
        "GNNPIPE_STAGE": "0",
        "GNNPIPE_OUT": str(tmp_path / "out"),
        "GNNPIPE_CACHE": str(tmp_path / "cache"),
        "GNNPIPE_METER": "",
        "GNNPIPE_TERMINATION_MESSAGE": str(tmp_path / "termination-log"),
        "GNNPIPE_MONITOR_ADDRESS": f"127.0.0.1:{free_port()}",
    }.items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def test_two_pods_train_a_job_to_the_weights_of_a_local_run(
    finished_run: Any, job: dict[str, Any], tmp_path: Path
) -> None:
    port = free_port()
    with pods(*(Pod(tmp_path / f"s{stage}", job, stage, port) for stage in (1, 0))) as (second, first):
        assert (first.wait(), second.wait()) == (0, 0), first.log.read_text() + second.log.read_text()

    here = torch.load(finished_run.out / "model.pt", weights_only=True)
    there = torch.load(first.out / "model.pt", weights_only=True)
    assert all(torch.equal(here[name], there[name]) for name in here)
    assert here.keys() == there.keys()
    assert not (second.out / "model.pt").exists()

    told = json.loads(first.message.read_text())
    assert told["accuracy"] == finished_run.result["accuracy"]
    assert told["epochs"] == job["spec"]["training"]["epochs"]
    assert second.message.read_text() == ""


@pytest.mark.parametrize(
    ("manifest", "sentence"),
    [
        ("{", "GNNPIPE_MANIFEST is not JSON"),
        ({"parallelism": {"stages": 9}}, "spec.parallelism.stages"),
        ({"parallelism": {"stages": 2, "chunks": "auto"}}, "spec.parallelism still says auto"),
        ({"graph": {"source": "npz", "path": "/nowhere/graph.npz"}}, "/nowhere/graph.npz"),
    ],
    ids=["not JSON", "more stages than layers", "nobody has planned it", "no such graph"],
)
def test_what_no_retry_can_mend_ends_with_2_and_a_sentence(
    job: dict[str, Any], pod_here: Path, monkeypatch: pytest.MonkeyPatch, manifest: Any, sentence: str
) -> None:
    if isinstance(manifest, dict):
        manifest = json.dumps({**job, "spec": {**job["spec"], **manifest}})
    monkeypatch.setenv("GNNPIPE_MANIFEST", manifest)
    assert main() == 2
    message = (pod_here / "termination-log").read_text()
    assert sentence in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("GNNPIPE_MANIFEST", None, "GNNPIPE_MANIFEST is not set"),
        ("GNNPIPE_STAGE", None, "GNNPIPE_STAGE is not set"),
        ("GNNPIPE_STAGE", "2", "GNNPIPE_STAGE is 2, but the job has 2 stages"),
    ],
)
def test_an_environment_that_no_operator_writes_is_named(
    pod_here: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, sentence: str
) -> None:
    monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name)
    assert main() == 2
    assert sentence in (pod_here / "termination-log").read_text()


def test_the_survivor_of_a_lost_node_leaves_with_a_code_of_its_own_and_names_who_is_lost(
    job: dict[str, Any], tmp_path: Path
) -> None:
    job["spec"]["training"] |= {"epochs": 100_000, "stallTimeoutSeconds": 5}
    port = free_port()
    with pods(*(Pod(tmp_path / f"s{stage}", job, stage, port) for stage in (0, 1))) as (first, second):
        while not (second.ask("/progress") or {}).get("epoch"):
            assert not second.ends_within(0.2), second.log.read_text()
        first.process.kill()  # its rank, and the place where all ranks meet, go with it
        assert second.wait() == ExitCode.LOST_PEER, second.log.read_text()
    assert "rank 0 (stage 0)" in second.message.read_text()


def test_a_pod_whose_only_rank_hangs_ends_itself_and_names_it(job: dict[str, Any], tmp_path: Path) -> None:
    """No other rank is there to notice, and Kubernetes sees a container that runs."""
    job["spec"]["training"] |= {"epochs": 100_000, "stallTimeoutSeconds": 4}
    job["spec"]["parallelism"] |= {"stages": 1}
    with pods(Pod(tmp_path / "s0", job, 0, free_port())) as (pod,):
        told: dict[str, Any] = {}
        while not told.get("epoch"):
            assert not pod.ends_within(0.2), pod.log.read_text()
            told = pod.ask("/progress") or {}
        assert read_progress(told).epochs == 100_000  # the operator can read it
        children = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text().split()
        (rank,) = map(int, children)
        os.kill(rank, signal.SIGSTOP)
        assert pod.wait() == ExitCode.FAILED, pod.log.read_text()
    assert pod.message.read_text().startswith("rank 0 (stage 0) has not answered for 4 s")
    assert not Path(f"/proc/{rank}").exists()


@pytest.mark.parametrize(
    ("place", "lost", "code"),
    [
        (Place(ranks_here=2), [1], ExitCode.FAILED),
        (Place(ranks_here=2, machines=2, machine=1), [3], ExitCode.FAILED),
        (Place(ranks_here=2, machines=2, machine=1), [1], ExitCode.LOST_PEER),
        (Place(ranks_here=2, machines=2, machine=1), [], ExitCode.LOST_PEER),
    ],
    ids=["a laptop", "a rank of this pod", "a rank of another pod", "nobody knows whose"],
)
def test_only_a_pod_whose_own_ranks_were_well_is_a_survivor(
    place: Place, lost: list[int], code: ExitCode
) -> None:
    assert place.blame(lost) == code


def test_a_pod_waits_for_the_name_of_stage_0_and_can_be_stopped_meanwhile(
    job: dict[str, Any], tmp_path: Path
) -> None:
    with pods(Pod(tmp_path / "s1", job, 1, free_port(), master="stage-0.invalid")) as (pod,):
        while (pod.ask("/progress") or {}).get("phase") != "waiting":
            assert not pod.ends_within(0.2), pod.log.read_text()
        pod.process.send_signal(signal.SIGTERM)
        assert pod.wait() == 75
    assert "asked to stop" in pod.message.read_text()


def test_stage_0_answers_by_name_to_itself_and_by_port_to_the_others() -> None:
    assert answers("127.0.0.1", None)
    assert not answers("stage-0.invalid", None)
    port = free_port()
    assert not answers("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        assert answers("127.0.0.1", port)


def test_a_long_reason_is_cut_to_what_kubernetes_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNPIPE_TERMINATION_MESSAGE", str(tmp_path / "message"))
    leave_word("première\nseconde " + "é" * 5000)
    said = (tmp_path / "message").read_bytes()
    assert said.decode().startswith("première seconde é")
    assert MESSAGE_BYTES - 2 < len(said) <= MESSAGE_BYTES


def test_the_result_of_a_thousand_ranks_still_fits_into_a_termination_message(
    finished_run: Any, tmp_path: Path
) -> None:
    result = finished_run.result
    result["peakMemoryBytes"] = [1_000_000_000 + rank for rank in range(1000)]
    result["plan"]["layersPerStage"] = [1000] * 1000
    (tmp_path / "result.json").write_text(json.dumps(result))
    message = summary(tmp_path / "result.json")
    assert len(message.encode()) <= MESSAGE_BYTES
    assert json.loads(message)["accuracy"] == result["accuracy"]
