"""The job's key-value store: small words between ranks, outside of collectives."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

STORE_TIMEOUT_SECONDS = 30.0
ASK_SECONDS = 0.05
CONNECT_SECONDS = 5.0


def job_store() -> Store:
    """A connection of its own to the store where all ranks met: a slow word never blocks another user of it."""
    await_store()
    timeout = timedelta(seconds=STORE_TIMEOUT_SECONDS)
    tcp_store = dist.TCPStore  # type: ignore[attr-defined]  # public, but torch does not list it
    store = tcp_store(*_address(), is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore("gnnpipe", store)


def await_store() -> None:
    """Until somebody listens there; torch's own tries lie a second apart. In vain it leaves the error to torch."""
    limit = time.monotonic() + STORE_TIMEOUT_SECONDS
    while time.monotonic() < limit:
        try:
            socket.create_connection(_address(), timeout=STORE_TIMEOUT_SECONDS).close()
            return
        except OSError:
            time.sleep(ASK_SECONDS)


def answers(address: str, port: int | None) -> bool:
    """Whether a name has an address, and somebody listens there if a port is given."""
    try:
        if port is None:
            socket.getaddrinfo(address, None)
        else:
            socket.create_connection((address, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _address() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
