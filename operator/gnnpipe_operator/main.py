"""`gnnpipe-operator`: puts the parts together and runs them until one ends or a signal comes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import kopf

from gnnpipe_api.contract import GROUP, VERSION
from gnnpipe_operator.api_client import ApiClient, ApiError, Unreachable, login
from gnnpipe_operator.cluster import KubeCluster
from gnnpipe_operator.election import Election, LeadershipLost
from gnnpipe_operator.handlers import configure, loser, register
from gnnpipe_operator.health import Health
from gnnpipe_operator.metrics import REGISTRY, JobCollector
from gnnpipe_operator.poller import Poller
from gnnpipe_operator.reconcile import Reconciler
from gnnpipe_operator.resync import Resync
from gnnpipe_operator.serve import serve_health, serve_metrics
from gnnpipe_operator.store import Store
from gnnpipe_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

LEASE = "gnnpipe-operator"
DEFAULT_IMAGE = "gnnpipe-trainer:latest"


@dataclass(frozen=True)
class Options:
    namespace: str | None  # None: all
    leader_elect: bool
    metrics_port: int
    probe_port: int


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="gnnpipe-operator", description="Runs GNNPipeJobs on Kubernetes.")
    parser.add_argument("--namespace", help="watch this namespace only; left out: all of them")
    parser.add_argument(
        "--leader-elect", action="store_true", help="let one of several replicas act, by a Lease"
    )
    parser.add_argument(
        "--metrics-port", type=int, default=9401, help="port of /metrics; 0 chooses a free one"
    )
    parser.add_argument("--probe-port", type=int, default=8081, help="port of /healthz; 0 chooses a free one")
    given = parser.parse_args(arguments)
    return Options(given.namespace, given.leader_elect, given.metrics_port, given.probe_port)


async def run(options: Options) -> None:
    health = Health()
    identity = os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"
    async with AsyncExitStack() as stack:
        await serve_health(stack, health, options.probe_port)
        await serve_metrics(stack, REGISTRY, options.metrics_port)  # a stand-by is scraped too: it is there
        client = await stack.enter_async_context(ApiClient(login))
        election = Election(client, os.environ.get("POD_NAMESPACE", "default"), LEASE, identity)
        if options.leader_elect:
            await election.acquire()
            stack.push_async_callback(election.release)
        else:
            election.leading.set()
        await _crd_is_there(client)
        store = Store()
        image = os.environ.get("GNNPIPE_TRAINER_IMAGE") or DEFAULT_IMAGE
        reconciler = Reconciler(store, KubeCluster(client, identity), image)
        queue = WorkQueue(reconciler.reconcile, election.leading)
        REGISTRY.register(JobCollector(store, reconciler.progress))
        lose = loser(store, queue, reconciler)
        parts = [
            _watch(options, store, queue, reconciler),
            queue.run(),
            Poller(store, reconciler.progress, queue.kick).run(),
            Resync(client, store, health, options.namespace, lose).run(),
        ]
        if options.leader_elect:
            parts.append(election.keep())
        await _until_one_ends(parts)


def _watch(
    options: Options, store: Store, queue: WorkQueue, reconciler: Reconciler
) -> Coroutine[Any, Any, None]:
    registry = kopf.OperatorRegistry()
    register(registry, store, queue, reconciler)
    settings = kopf.OperatorSettings()
    configure(settings)
    scope: dict[str, Any] = (
        {"namespaces": [options.namespace]} if options.namespace else {"clusterwide": True}
    )
    return kopf.operator(registry=registry, settings=settings, standalone=True, **scope)


async def _crd_is_there(client: ApiClient) -> None:
    """kopf looks for the resource once; where the CRD comes later, it would wait for ever."""
    told = False
    while True:
        try:
            await client.get(f"/apis/{GROUP}/{VERSION}")
            return
        except (ApiError, Unreachable) as error:
            if not told:
                log.warning(
                    "waiting for the GNNPipeJob definition (gnnpipe crd | kubectl apply -f -): %s", error
                )
            told = True
        await asyncio.sleep(1)


async def _until_one_ends(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Before kopf takes the signals over, a stand-by must end by them too."""
    task = asyncio.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        log.info("stopped by a signal")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    level = os.environ.get("GNNPIPE_LOG_LEVEL", "info").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if level != "DEBUG":
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # it tells of every event of every pod
    try:
        asyncio.run(_until_signal(run(options)))
    except LeadershipLost as lost:
        log.warning("stepping down: %s", lost)
        sys.exit(1)
    except kopf.LoginError as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
