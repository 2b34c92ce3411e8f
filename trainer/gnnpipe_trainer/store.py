"""The job's key-value store: small words between ranks, outside of collectives."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

STORE_TIMEOUT_SECONDS = 30.0


def job_store() -> Store:
    """A connection of its own to the store where all ranks met: a slow word never blocks another user of it."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=STORE_TIMEOUT_SECONDS)
    tcp_store = dist.TCPStore  # type: ignore[attr-defined]  # public, but torch does not list it
    store = tcp_store(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore("gnnpipe", store)
