"""What the operator sees and lets be seen: progress, metrics, health, lost events."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from harness.controlplane import ControlPlane
from harness.processes import free_ports

from gnnpipe_api.contract import MONITOR_PORT
from gnnpipe_operator.api_client import ApiClient, login
from gnnpipe_operator.health import Health
from gnnpipe_operator.observed import observe_pod
from gnnpipe_operator.resync import Resync
from gnnpipe_operator.store import Store

PROGRESS = {
    "epoch": 40,
    "epochs": 200,
    "loss": 0.5,
    "accuracy": {"test": 0.8},
    "secondsPerEpoch": 0.25,
    "etaSeconds": 40,
    "bubble": {"measured": 0.2, "ideal": 0.1},
    "bytesPerEpoch": {"pipeline": 1024},
}


@pytest.fixture
def trainer_address() -> Iterator[str]:
    """A loopback address of this process's own where /progress is answered as a trainer would."""

    class Trainer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(PROGRESS).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    address = f"127.{os.getpid() >> 8 & 127}.{os.getpid() & 255}.7"
    server = ThreadingHTTPServer((address, MONITOR_PORT), Trainer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


def get(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def test_progress_comes_from_the_pods_into_status_and_metrics_and_ends_with_the_job(
    play: Any, make_operator: Any, trainer_address: str
) -> None:
    metrics, probe = free_ports(2)
    make_operator(f"--metrics-port={metrics}", f"--probe-port={probe}").start()
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0", within=60)
    play.run("cora-s1-a0")
    play.run("cora-s0-a0", podIP=trainer_address, podIPs=[{"ip": trainer_address}])
    play.until("the epoch is told", lambda: play.status("cora").get("epoch") == 40)
    status = play.status("cora")
    assert (status["progress"], status["loss"], status["etaSeconds"]) == ("40/200", 0.5, 40)
    told = get(metrics, "/metrics")
    assert 'gnnpipe_job_epoch{job="cora",namespace="' in told
    assert f'gnnpipe_job_progress_ratio{{job="cora",namespace="{play.namespace}"}} 0.2' in told
    assert f'gnnpipe_job_phase{{job="cora",namespace="{play.namespace}",phase="Running"}} 1.0' in told
    sent = f'{{job="cora",kind="pipeline",namespace="{play.namespace}"}} 1024.0'
    assert f"gnnpipe_job_comm_bytes_per_epoch{sent}" in told
    assert "gnnpipe_reconcile_errors_total 0.0" in told
    assert get(probe, "/healthz") == "ok"
    play.delete("cora")
    play.until("its series end", lambda: 'job="cora"' not in get(metrics, "/metrics"))


def test_the_columns_tell_the_story(play: Any, operator: Any, control_plane: ControlPlane) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.run()
    play.until_phase("cora", "Running")
    header, row = control_plane.kubectl.inside(play.namespace)("get", "gpj").splitlines()
    assert header.split() == ["NAME", "PHASE", "STAGES", "EPOCH", "LOSS", "TEST", "RESTARTS", "AGE"]
    assert row.split()[:3] == ["cora", "Running", "2"]


def test_an_object_that_went_away_unseen_is_found_missing_and_a_dead_watch_is_reported(
    play: Any, operator: Any, control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0")
    play.until_phase("cora", "Pending")
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    raw = [
        play.raw.sanitize_for_serialization(p) for p in play.core.list_namespaced_pod(play.namespace).items
    ]
    first, second = (observe_pod(pod) for pod in raw)
    key = (play.namespace, "cora")
    store, health, lost = Store(), Health(), []
    store.put_pod(key, first)  # and of the second no event ever came
    play.remove_pod(first.name)

    async def compare(times: int) -> None:
        async with ApiClient(login) as client:
            resync = Resync(client, store, health, play.namespace, lambda *gone: lost.append(gone))
            for _ in range(times):
                await resync.compare("pods")

    play.until("the pod is gone", lambda: first.name not in play.pods())
    asyncio.run(compare(times=1))
    assert lost == [("pods", key, first.uid)]
    assert health.problems() == []
    # The operator restarts the gang meanwhile; what this store knows stays as it was, as behind a dead watch.
    play.until_pods("cora-s0-a1", "cora-s1-a1")
    asyncio.run(compare(times=2))
    assert "watch of pods is dead" in health.problems()[0]
    assert second.uid != first.uid
