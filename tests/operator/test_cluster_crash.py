"""The operator dies, the API server goes away, another operator stands by, a namespace is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from harness.controlplane import ControlPlane
from harness.processes import free_ports, poll

from gnnpipe_api.crd import crd

AWAY_SECONDS = float(os.environ.get("GNNPIPE_AWAY_SECONDS", "5"))
CREATED, RUNNING = ("Normal", "Created"), ("Normal", "Running")
WRITES = ("POST", "PUT", "PATCH", "DELETE")


class Proxy:
    """Between an operator and the API server. Calls `after_write` when a write is done and not yet answered."""

    def __init__(self, server: kopf.ConnectionInfo) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self.port = 0
        self.writes: list[tuple[str, str]] = []
        self.after_write: Callable[[], None] = lambda: None

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=20)

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._server.as_ssl_context(), limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            app = web.Application(client_max_size=2**24)

            async def forward(request: web.Request) -> web.StreamResponse:
                return await self._forward(session, request)

            app.router.add_route("*", "/{path:.*}", forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._listening.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _forward(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        url = self._server.server + request.path_qs
        headers = {k: v for k, v in request.headers.items() if k in ("Accept", "Content-Type")}
        body = await request.read() or None  # an empty body would be given a type, and refused
        async with session.request(request.method, url, headers=headers, data=body) as answer:
            if request.method in WRITES and answer.status < 300:
                self.writes.append((request.method, request.path))
                self.after_write()
            kept = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            response = web.StreamResponse(status=answer.status, headers=kept)
            with contextlib.suppress(aiohttp.ClientConnectionResetError):  # who asked is dead by now
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        return response


@pytest.fixture
def proxy(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[tuple[Proxy, Path]]:
    """The proxy and a kubeconfig that leads through it."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    server = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    assert server is not None
    with Proxy(server) as running:
        kubeconfig = tmp_path / "through-the-proxy"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n"
            "contexts: [{name: it, context: {cluster: it, user: it}}]\nusers: [{name: it, user: {}}]\n"
            f"clusters: [{{name: it, cluster: {{server: 'http://127.0.0.1:{running.port}'}}}}]\n"
        )
        yield running, kubeconfig


class Mortals:
    """Operators that follow each other, each with one write to live for."""

    def __init__(self, proxy: tuple[Proxy, Path], make_operator: Any) -> None:
        self._proxy, kubeconfig = proxy
        self._operator = make_operator(kubeconfig=kubeconfig)
        self._proxy.after_write = self._operator.kill
        self.deaths = 0

    def live_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 150
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}; writes: {self._proxy.writes}"
            self._operator.start()
            # A process that has nothing to write stays; what it waits for is the test's to do.
            poll(lambda: not self._operator.process.alive or condition(), 60, every=0.1)
            self.deaths += not self._operator.process.alive
        self._operator.kill()


@pytest.fixture
def mortals(proxy: tuple[Proxy, Path], make_operator: Any) -> Mortals:
    return Mortals(proxy, make_operator)


def test_an_operator_killed_after_each_write_comes_to_the_same_end(play: Any, mortals: Mortals) -> None:
    play.apply("cora")
    mortals.live_until("two pods", lambda: play.phase("cora") == "Pending")
    play.run()
    mortals.live_until("running", lambda: play.phase("cora") == "Running")
    play.end("cora-s0-a0", 75)
    mortals.live_until(
        "restarted", lambda: play.pods() == ["cora-s0-a1", "cora-s1-a1"] and play.services() == ["cora"]
    )
    play.run()
    mortals.live_until("running again", lambda: play.phase("cora") == "Running")
    play.end("cora-s0-a1", 0)
    play.end("cora-s1-a1", 0)
    mortals.live_until("done", lambda: play.phase("cora") == "Succeeded")

    restarting = ("Warning", "Restarting")
    assert play.events("cora") == [CREATED, RUNNING, restarting, CREATED, RUNNING, ("Normal", "Succeeded")]
    assert play.pods() == ["cora-s0-a1", "cora-s1-a1"]
    assert (play.status("cora")["restarts"], play.status("cora")["failures"]) == (1, 0)
    assert mortals.deaths >= 10


def test_an_operator_killed_after_each_write_plans_a_job_once(play: Any, mortals: Mortals) -> None:
    play.apply("cora", parallelism={"stages": "auto"})
    mortals.live_until("planning", lambda: play.phase("cora") == "Pending")
    play.run()
    play.end("cora-plan-a0", 75)
    mortals.live_until("planning again", lambda: play.pods() == ["cora-plan-a1"])
    play.run()
    play.plan("cora-plan-a1", stages=2)
    gang = ["cora-s0-a1", "cora-s1-a1"]
    mortals.live_until(
        "two stages", lambda: play.pods() == gang and ("Normal", "Created") in play.events("cora")
    )
    planned = ("Normal", "Planned")
    assert play.events("cora") == [("Warning", "Restarting"), planned, CREATED]
    assert play.services() == ["cora"]
    assert (play.status("cora")["restarts"], play.status("cora")["plan"]["chunks"]) == (1, 8)
    assert mortals.deaths >= 8


@pytest.mark.parametrize(("stages", "most"), [(4, 12), ("auto", 17)])
def test_a_job_of_four_stages_takes_at_most_twelve_writes_and_five_more_to_be_planned(
    proxy: tuple[Proxy, Path], play: Any, make_operator: Any, stages: int | str, most: int
) -> None:
    through, kubeconfig = proxy
    make_operator(kubeconfig=kubeconfig).start()
    play.apply("cora", parallelism={"stages": stages})
    if stages == "auto":
        play.until_pods("cora-plan-a0", within=60)
        play.until_phase("cora", "Pending")
        play.plan("cora-plan-a0", stages=4)
    pods = [f"cora-s{stage}-a0" for stage in range(4)]
    play.until_pods(*pods, within=60)
    play.run()
    play.until_phase("cora", "Running")
    for pod in pods:
        play.end(pod, 0)
    play.until_phase("cora", "Succeeded")
    assert len(through.writes) <= most, through.writes


def test_an_api_server_that_was_away_finds_the_operator_going_on(
    control_plane: ControlPlane, make_operator: Any, play_at: Any
) -> None:
    with ControlPlane(scheduler=False, definitions=[crd()]) as own:
        play = play_at(own)
        operator = make_operator("--namespace=default", kubeconfig=own.kubeconfig).start()
        operator.allowed = [r"kopf\."]  # kopf tells of every request that fails, as it should
        play.apply("cora")
        play.until_pods("cora-s0-a0", "cora-s1-a0", within=60)
        play.run()
        play.until_phase("cora", "Running")
        own.stop_apiserver()
        time.sleep(AWAY_SECONDS)  # the absence itself is what is tested
        assert operator.process.alive
        own.start_apiserver()
        play.end("cora-s0-a0", 0)
        play.end("cora-s1-a0", 0)
        play.until_phase("cora", "Succeeded", within=60)
        assert operator.process.alive
        assert play.events("cora") == [CREATED, RUNNING, ("Normal", "Succeeded")]


@pytest.mark.parametrize("gently", [True, False], ids=["stopped", "killed"])
def test_of_two_operators_one_acts_and_the_other_takes_over(
    play: Any, make_operator: Any, gently: bool
) -> None:
    (metrics,) = free_ports(1)
    first = make_operator("--leader-elect")
    second = make_operator("--leader-elect", f"--metrics-port={metrics}")
    for operator in (first, second):
        operator.environment["POD_NAMESPACE"] = play.namespace
    first.start()
    play.until("the first leads", lambda: " leads" in first.log(), within=60)
    second.start()
    play.apply("cora")
    play.until_pods("cora-s0-a0", "cora-s1-a0", within=60)
    play.until("the second waits", lambda: "waits for Lease" in second.log(), within=60)
    assert " leads" not in second.log()
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=5) as answer:
        assert b"gnnpipe_reconcile_errors_total 0.0" in answer.read()  # a stand-by is scraped as well
    first.stop() if gently else first.kill()
    play.run()
    play.until_phase("cora", "Running", within=60)
    assert " leads" in second.log()
    assert play.events("cora") == [CREATED, RUNNING]


@pytest.mark.parametrize("operator_is", ["up", "down"])
def test_a_namespace_with_running_jobs_deletes_within_thirty_seconds(
    play: Any, play_at: Any, control_plane: ControlPlane, make_operator: Any, operator_is: str
) -> None:
    doomed = f"{play.namespace}-doomed"
    control_plane.kubectl("create", "namespace", doomed)
    inside = play_at(control_plane, doomed)
    operator = make_operator(f"--namespace={doomed}").start()
    for name in ("cora", "pubmed"):
        inside.apply(name)
    inside.until("all pods are there", lambda: len(inside.pods()) == 4, within=60)
    inside.run()
    for name in ("cora", "pubmed"):
        inside.until_phase(name, "Running")
    if operator_is == "down":
        operator.kill()
    control_plane.kubectl("delete", "namespace", doomed, "--wait=false")
    there = f"namespace/{doomed}"
    assert poll(lambda: there not in control_plane.kubectl("get", "namespaces", "-o", "name"), 30, every=0.3)
