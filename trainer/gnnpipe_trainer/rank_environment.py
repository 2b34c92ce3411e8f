"""What ranks find in their environment, for whoever starts them. It must be there before they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# Large buffers are kept instead of being mapped anew each time, and the whole heap lies on huge pages. Not by torch's
# switch for that, which lets every large tensor begin a huge page of its own: glibc before 2.38 does not find the holes
# that they leave again, and a rank's heap grew to twice what it used.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}

# As ranks have it where each has a core, for whatever is compared with them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **ALLOCATOR}


def for_ranks(world: int, environment: Mapping[str, str], scratch: Path | None = None) -> dict[str, str]:
    """What of it `environment` lacks, for a job of `world` ranks. What torch writes down goes to `scratch` or to /tmp.

    Threads are shared out among all ranks of the job, wherever they run: the number of threads that add up a sum
    decides how it is rounded, so a job in pods, which like to be on one node anyway, learns bit for bit what it learns
    on a laptop.
    """
    threads = max(1, (os.cpu_count() or 1) // world)
    wanted = {"OMP_NUM_THREADS": str(threads), **ALLOCATOR}
    if scratch is not None:
        wanted["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "inductor")
    return {name: setting for name, setting in wanted.items() if name not in environment}


def enter(world: int) -> None:
    """Give this process, whose forks will be ranks, their environment. It starts anew where that is the only way.

    The C library reads its settings when a process starts, the others are read when torch is imported.
    """
    lacking = for_ranks(world, os.environ)
    os.environ.update(lacking)
    if lacking.keys() & ALLOCATOR.keys():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
