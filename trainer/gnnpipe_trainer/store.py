"""The job's key-value store: small words between ranks, outside of collectives."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

STORE_TIMEOUT_SECONDS = 30.0


def job_store() -> dist.Store:
    """A connection of its own to the store where all ranks met: a slow word never blocks another user of it."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    timeout = timedelta(seconds=STORE_TIMEOUT_SECONDS)
    store = dist.TCPStore(address, port, is_master=False, timeout=timeout, wait_for_workers=False)
    return dist.PrefixStore("gnnpipe", store)
