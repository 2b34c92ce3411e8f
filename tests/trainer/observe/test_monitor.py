"""What a pod serves: the figures of its ranks, to whoever asks, at no cost to training."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gnnpipe_operator.progress import read_progress
from gnnpipe_trainer import monitor as monitor_module
from gnnpipe_trainer.meter import Meter
from gnnpipe_trainer.monitor import MOST_CONNECTIONS, Monitor, Server, serving
from gnnpipe_trainer.pipeline.engine import EpochTimes
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Traffic
from gnnpipe_trainer.report import Accuracy, RankReport
from gnnpipe_trainer.staleness.figures import RankStaleness

DESIGN = {
    "gnnpipe_epoch",
    "gnnpipe_loss",
    "gnnpipe_accuracy",
    "gnnpipe_epoch_seconds",
    "gnnpipe_stage_busy_seconds_total",
    "gnnpipe_stage_idle_seconds_total",
    "gnnpipe_comm_bytes_total",
    "gnnpipe_comm_wait_seconds_total",
    "gnnpipe_history_drift",
    "gnnpipe_stale_share",
    "gnnpipe_gradient_oscillation",
    "gnnpipe_checkpoint_seconds",
    "gnnpipe_checkpoint_failures_total",
    "gnnpipe_memory_bytes",
}
LINE = {
    "epoch": 0,
    "loss": 0.5,
    "bytes": {"pipeline": 10, "graph": 4, "gradient": 2, "total": 16},
    "idle": [0.2, 0.4],
    "staleShare": 0.3,
    "oscillation": -0.1,
}
OF_THE_JOB = {"gnnpipe_loss", "gnnpipe_stale_share", "gnnpipe_gradient_oscillation"}  # known to rank 0


def _train(meter: Meter, epochs: int, line: dict[str, Any] | None = None) -> None:
    """Epochs of one second: half work, 0.3 s idle, 0.2 s on the wire."""
    for epoch in range(epochs):
        traffic = Traffic(
            sent={"pipeline": 100, "graph": 7},
            received={"pipeline": 60},
            wait_seconds={"pipeline": 0.4, "graph": 0.1},
            idle_seconds={"forward": 0.2, "backward": 0.1},
        )
        staleness = RankStaleness(drifts=((0.0, 0.0), (0.01, 1.0)))  # the first block keeps no history
        report = RankReport(0.5, 1.0, 0.5, 100, 7, 0, 4096, staleness)
        meter.checkpointed(0.25, 3)
        meter.epoch(epoch, EpochTimes(0.5, 1.0, traffic), report, line)
    meter.evaluated(Accuracy(0.9, 0.8, 0.7), line)


@pytest.fixture
def monitor(tmp_path: Path) -> Monitor:
    return Monitor(
        tmp_path,
        job="deep",
        namespace="team",
        stage=0,
        attempt=2,
        epochs=10,
        ideal_bubble=0.1,
        phase="training",
    )


@pytest.fixture
def server(monitor: Monitor) -> Iterator[Server]:
    with serving(monitor, "127.0.0.1", 0) as server:
        assert server is not None
        yield server


def _get(server: Server, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def _samples(text: str) -> dict[tuple[str, str, tuple[str, ...]], float]:
    """By name, rank and the values of the labels left, kind before direction."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("job"), labels.pop("namespace")) == ("deep", "team")
            assert labels.pop("stage") == "0"
            found[
                sample.name, labels.pop("rank"), tuple(labels[key] for key in sorted(labels, reverse=True))
            ] = sample.value
    return found


def test_metrics_hold_every_series_of_the_design_for_every_rank_of_the_pod(
    server: Server, tmp_path: Path
) -> None:
    for rank in (0, 1):
        _train(Meter(Topology(2, 2, rank), 10, tmp_path), 3, LINE if rank == 0 else None)
    samples = _samples(_get(server, "/metrics"))
    assert {name for name, rank, _ in samples if rank == "0"} == DESIGN
    assert {name for name, rank, _ in samples if rank == "1"} == DESIGN - OF_THE_JOB


def test_every_series_has_its_line_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    assert [name for name in DESIGN if f"| `{name}` |" not in page] == []


def test_seconds_and_bytes_add_up_over_the_epochs(server: Server, tmp_path: Path) -> None:
    _train(Meter(Topology(2, 1, 0), 10, tmp_path), 4, LINE)
    samples = _samples(_get(server, "/metrics"))
    expected = {
        ("gnnpipe_epoch", ()): 4,
        ("gnnpipe_stage_busy_seconds_total", ()): 4 * 0.5,
        ("gnnpipe_stage_idle_seconds_total", ("forward",)): 4 * 0.2,
        ("gnnpipe_stage_idle_seconds_total", ("backward",)): 4 * 0.1,
        ("gnnpipe_comm_wait_seconds_total", ("pipeline",)): 4 * 0.1,  # without the idle part
        ("gnnpipe_comm_wait_seconds_total", ("graph",)): 4 * 0.1,
        ("gnnpipe_comm_bytes_total", ("pipeline", "sent")): 400,
        ("gnnpipe_comm_bytes_total", ("pipeline", "received")): 240,
        ("gnnpipe_accuracy", ("test",)): 0.7,
        ("gnnpipe_history_drift", ("1",)): 0.1,
        ("gnnpipe_stale_share", ()): 0.3,
        ("gnnpipe_gradient_oscillation", ()): -0.1,
        ("gnnpipe_checkpoint_seconds", ()): 0.25,
        ("gnnpipe_checkpoint_failures_total", ()): 3,
        ("gnnpipe_memory_bytes", ()): 4096,
    }
    assert {key: samples[key[0], "0", key[1]] for key in expected} == pytest.approx(expected)
    spent = [value for (name, _, _), value in samples.items() if name.endswith("_seconds_total")]
    assert sum(spent) == pytest.approx(4 * 1.0)  # busy, idle and wire together are the epochs


def test_before_the_first_epoch_there_are_no_series_and_progress_says_what_goes_on(
    server: Server, monitor: Monitor
) -> None:
    assert _samples(_get(server, "/metrics")) == {}
    monitor.phase = "preparing"
    progress = json.loads(_get(server, "/progress"))
    assert progress == {
        "job": "deep",
        "namespace": "team",
        "stage": 0,
        "attempt": 2,
        "phase": "preparing",
        "epochs": 10,
    }


def test_the_operator_understands_progress(server: Server, tmp_path: Path) -> None:
    _train(Meter(Topology(2, 1, 0), 10, tmp_path), 4, LINE)
    progress = read_progress(json.loads(_get(server, "/progress")))
    assert (progress.epoch, progress.epochs, progress.loss, progress.seconds_per_epoch) == (4, 10, 0.5, 1.0)
    assert progress.accuracy is not None
    assert progress.accuracy.test == 0.7
    assert progress.bubble == pytest.approx(0.3)
    assert progress.bytes_per_epoch == LINE["bytes"]
    assert progress.eta_seconds is not None


def test_a_loss_that_exploded_is_left_out_of_progress(server: Server, tmp_path: Path) -> None:
    _train(Meter(Topology(2, 1, 0), 10, tmp_path), 1, {**LINE, "loss": float("nan")})
    assert json.loads(_get(server, "/progress"))["loss"] is None


def test_a_healthy_pod_says_so_and_other_paths_do_not_exist(server: Server) -> None:
    assert _get(server, "/healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _get(server, "/secrets")


def test_a_port_that_is_taken_only_warns(monitor: Monitor, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with serving(monitor, "127.0.0.1", port) as server:
            assert server is None
    assert f"port {port} cannot be had" in caplog.text


def test_clients_that_hang_are_dropped_and_others_served_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.5)
    hanging = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(MOST_CONNECTIONS)]
    try:
        _await(lambda: _get(server, "/healthz") == "ok\n")
    finally:
        for client in hanging:
            client.close()


def test_a_thousand_scrapes_read_the_figures_a_few_times(
    monitor: Monitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _train(Meter(Topology(2, 1, 0), 10, tmp_path), 1, LINE)
    reads: list[Path] = []
    real = monitor_module.read_figures
    monkeypatch.setattr(monitor_module, "read_figures", lambda folder: reads.append(folder) or real(folder))
    began = time.monotonic()
    for _ in range(1000):
        assert monitor.answer("/metrics") is not None
    assert len(reads) <= 1 + (time.monotonic() - began) / monitor_module.FRESH_SECONDS


def test_a_meter_writes_a_few_times_a_second_and_always_the_last_epoch(tmp_path: Path) -> None:
    meter = Meter(Topology(2, 1, 0), 50, tmp_path)
    began = time.monotonic()
    stamps = set()
    for _ in range(50):
        _train_one(meter)
        stamps.add((tmp_path / "rank0.json").stat().st_mtime_ns)
    assert len(stamps) <= 1 + (time.monotonic() - began) / 0.25
    meter.close(LINE)
    assert json.loads((tmp_path / "rank0.json").read_text())["epoch"] == meter.figures.epoch


def test_a_meter_without_room_to_write_warns_once_and_lets_training_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter(Topology(2, 1, 0), 10, tmp_path / "gone")
    _train(meter, 3)
    meter.close(None)
    assert caplog.text.count("The metrics of this rank end here") == 1


def _train_one(meter: Meter) -> None:
    report = RankReport(0.5, 1.0, 0.5, 100, 7, 0, 4096)
    meter.epoch(meter.figures.epoch, EpochTimes(0.5, 1.0, Traffic()), report, LINE)


def _await(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            assert condition()
            return
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
