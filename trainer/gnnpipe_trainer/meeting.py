"""Where the machines of a job meet: a store that the first one serves, for the launchers and then for their ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gnnpipe_trainer.store import STORE_TIMEOUT_SECONDS, answers

RENDEZVOUS_SECONDS = 24 * 3600  # other pods may wait for their nodes for long; the operator has the deadlines
LEAVING_SECONDS = 60  # for slower machines, once all ranks here are done
ASK_SECONDS = 0.1
LOOPBACK = "127.0.0.1"
ALL_HERE = "all here"


class Meeting:
    """Machine 0 serves at `address`, where `port` may be 0 for any free one."""

    def __init__(self, machine: int, machines: int, address: str, port: int) -> None:
        self.machine, self.machines, self.address = machine, machines, address
        if machine > 0:
            _until(lambda: answers(address, port), RENDEZVOUS_SECONDS)
        self.port, self._server = _connect(machine, machines, address, port)
        self._store: Store = PrefixStore("launchers", self._server)

    def await_all(self) -> None:
        """Ranks that have begun wait for each other for a short time only, so none begins before all pods are there."""
        if self.machines == 1:
            return
        self._store.set(f"here/{self.machine}", "")
        if self.machine > 0:
            _until(lambda: self._store.check([ALL_HERE]), RENDEZVOUS_SECONDS)
            return
        everyone = [f"here/{machine}" for machine in range(self.machines)]
        _until(lambda: self._store.check(everyone), RENDEZVOUS_SECONDS)
        self._store.set(ALL_HERE, "")

    def leave(self) -> None:
        """The store ends with its server, who waits until nobody needs it."""
        with suppress(dist.DistError):
            self._store.set(f"left/{self.machine}", "")
            if self.machine == 0:
                everyone = [f"left/{machine}" for machine in range(self.machines)]
                _until(lambda: self._store.check(everyone), LEAVING_SECONDS)

    def close(self) -> None:
        del self._store, self._server


def _connect(machine: int, machines: int, address: str, port: int) -> tuple[int, Store]:
    tcp_store = dist.TCPStore  # type: ignore[attr-defined]  # public, but torch does not list it
    timeout = timedelta(seconds=STORE_TIMEOUT_SECONDS)
    options: dict[str, Any] = {"is_master": machine == 0, "timeout": timeout, "wait_for_workers": False}
    if machines == 1:  # nobody else's business
        listening = socket.create_server((LOOPBACK, port))
        port = listening.getsockname()[1]
        options["master_listen_fd"] = listening.detach()
    store = tcp_store(address, port, **options)
    return store.port, store


def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Asked from here again and again and not waited for in torch, where a signal to stop would go unheard."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise dist.DistStoreError(f"not all machines have come within {seconds:.0f} s")
        time.sleep(ASK_SECONDS)
