"""What a pod says about itself over HTTP: /metrics for Prometheus, /progress for the operator, /healthz.

It runs in the pod's main process, beside the ranks, and reads what they left behind (meter.py) when asked.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnnpipe_api.contract import MONITOR_PORT
from gnnpipe_trainer.meter import Figures, read_figures

log = logging.getLogger("gnnpipe")

# Answers younger than this are given again: a thousand scrapes cost as much as two a second.
FRESH_SECONDS = 0.5
MOST_CONNECTIONS = 16
CLIENT_TIMEOUT_SECONDS = 5
NICENESS = 10  # whoever looks gives way to whoever trains
LABELS = ["job", "namespace", "stage", "rank"]


@dataclass
class Monitor:
    """What is known of the ranks of this pod."""

    folder: Path  # where they leave their figures
    job: str
    namespace: str
    stage: int
    attempt: int
    epochs: int
    ideal_bubble: float
    phase: str = "preparing"  # preparing | waiting | training | done | failed
    _answers: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Content type and body; None for a path that does not exist."""
        made: dict[str, tuple[str, Callable[[], bytes]]] = {
            "/metrics": (CONTENT_TYPE_LATEST, self._metrics),
            "/progress": ("application/json", lambda: json.dumps(self.progress(), allow_nan=False).encode()),
            "/healthz": ("text/plain; charset=utf-8", lambda: b"ok\n"),
        }
        if path not in made:
            return None
        kind, make = made[path]
        with self._lock:
            asked, body = self._answers.get(path, (float("-inf"), b""))
            if time.monotonic() - asked > FRESH_SECONDS:
                body = make()
                self._answers[path] = (time.monotonic(), body)
        return kind, body

    def progress(self) -> dict[str, Any]:
        """As the operator reads it. Figures of the whole job are known where rank 0 is, in the pod of stage 0."""
        ranks = read_figures(self.folder)
        told: dict[str, Any] = {
            "job": self.job,
            "namespace": self.namespace,
            "stage": self.stage,
            "attempt": self.attempt,
            "phase": self.phase,
            "epochs": self.epochs,
        }
        if not ranks:
            return told
        first = ranks[0]
        told |= {
            "epoch": first.epoch,
            "loss": _finite(first.loss),
            "accuracy": first.accuracy,
            "secondsPerEpoch": first.seconds_per_epoch,
            "etaSeconds": first.eta_seconds,
            "bytesPerEpoch": first.bytes_per_epoch,
            "bubble": {"measured": first.bubble, "ideal": self.ideal_bubble},
            "drift": _finite(first.drift),
            "staleShare": first.stale_share,
            "oscillation": first.oscillation,
            "memoryBytes": [rank.memory_bytes for rank in ranks],
        }
        return told

    def _metrics(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Series(self))
        return generate_latest(registry)


class _Series(Collector):
    """The ranks' figures as Prometheus series; a figure that a rank does not have makes no series."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._ranks = read_figures(monitor.folder)

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("epoch", "Epochs done.", lambda r: r.epoch)
        yield self._gauge("loss", "Training loss of the last epoch; on rank 0.", lambda r: r.loss)
        yield self._gauge(
            "accuracy", "Accuracy at the last evaluation.", lambda r: r.accuracy or {}, split="split"
        )
        yield self._gauge("epoch_seconds", "Seconds that the last epoch took.", lambda r: r.epoch_seconds)
        yield self._counter(
            "stage_busy_seconds", "Seconds of work in epochs.", lambda r: {"": r.busy_seconds}
        )
        yield self._counter(
            "stage_idle_seconds",
            "Seconds without work, by the pass whose neighbour was waited for.",
            lambda r: r.idle_seconds,
            "reason",
        )
        yield self._bytes()
        yield self._counter(
            "comm_wait_seconds", "Seconds spent waiting for the wire.", lambda r: r.wait_seconds, "kind"
        )
        yield self._gauge(
            "history_drift",
            "Relative distance of fresh from historical embeddings, by block of the model.",
            lambda r: r.block_drifts,
            split="block",
        )
        yield self._gauge(
            "stale_share", "Share of the edge weight read from history; on rank 0.", lambda r: r.stale_share
        )
        yield self._gauge(
            "gradient_oscillation",
            "Lowest autocorrelation of the gradient, 5 to 8 epochs apart; on rank 0.",
            lambda r: r.oscillation,
        )
        yield self._gauge(
            "checkpoint_seconds", "Seconds that the last checkpoint took.", lambda r: r.checkpoint_seconds
        )
        yield self._counter(
            "checkpoint_failures",
            "Checkpoints that could not be written.",
            lambda r: {"": r.checkpoint_failures},
        )
        yield self._gauge("memory_bytes", "Peak memory of the rank.", lambda r: r.memory_bytes)

    def _gauge(self, name: str, about: str, value: Callable[[Figures], Any], split: str = "") -> Metric:
        family = GaugeMetricFamily(f"gnnpipe_{name}", about, labels=[*LABELS, *([split] if split else [])])
        for rank in self._ranks:
            found = value(rank)
            for extra, number in (found if split else {"": found}).items():
                if number is not None:
                    family.add_metric([*self._labels(rank), *([extra] if split else [])], number)
        return family

    def _counter(
        self, name: str, about: str, values: Callable[[Figures], dict[str, float]], by: str = ""
    ) -> Metric:
        family = CounterMetricFamily(f"gnnpipe_{name}", about, labels=[*LABELS, *([by] if by else [])])
        for rank in self._ranks:
            for key, total in values(rank).items():
                family.add_metric([*self._labels(rank), *([key] if by else [])], total)
        return family

    def _bytes(self) -> Metric:
        about = "Bytes handed to and taken from torch.distributed."
        family = CounterMetricFamily("gnnpipe_comm_bytes", about, labels=[*LABELS, "kind", "direction"])
        for rank in self._ranks:
            for direction, totals in (("sent", rank.sent_bytes), ("received", rank.received_bytes)):
                for kind, total in totals.items():
                    family.add_metric([*self._labels(rank), kind, direction], total)
        return family

    def _labels(self, rank: Figures) -> list[str]:
        return [self._monitor.job, self._monitor.namespace, str(rank.stage), str(rank.rank)]


class Server(ThreadingHTTPServer):
    """Bounded in threads and in patience, so that no client can cost the pod more than a little."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, monitor: Monitor, host: str, port: int) -> None:
        self.monitor = monitor
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        both = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.bind(
            self.server_address
        )  # not the base class's: it looks up this host's name, and may hang
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("A client of the monitor went away", exc_info=True)

    def serve(self) -> None:
        os.setpriority(
            os.PRIO_PROCESS, threading.get_native_id(), NICENESS
        )  # of this thread and those it starts
        self.serve_forever(poll_interval=0.2)


class _Handler(BaseHTTPRequestHandler):
    """A scraper that comes again within its time-out finds its connection and thread: half the cost of a new one."""

    server: Server
    timeout = CLIENT_TIMEOUT_SECONDS
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet: the second would wait for an acknowledgement
    server_version, sys_version = "gnnpipe", ""

    def do_GET(self) -> None:
        answer = self.server.monitor.answer(self.path.split("?")[0])
        if answer is None:
            self.send_error(404)
            return
        kind, body = answer
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is nothing to tell."""


@contextmanager
def serving(monitor: Monitor, host: str = "", port: int = MONITOR_PORT) -> Iterator[Server | None]:
    """Serve until the block ends; on every address unless a host is named. A port that is taken only warns."""
    try:
        server = Server(monitor, host, port)
    except OSError as error:
        log.warning("No /metrics and no /progress: port %d cannot be had (%s); training goes on", port, error)
        yield None
        return
    thread = threading.Thread(target=server.serve, name="monitor", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _finite(number: float | None) -> float | None:
    """JSON knows no NaN: a loss that exploded is left out."""
    return number if number is not None and math.isfinite(number) else None
