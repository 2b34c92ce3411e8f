"""What ranks find in their environment, for whoever starts them. It must be there before they start."""

from __future__ import annotations

# Large buffers are kept instead of being mapped anew each time, and lie on huge pages (torch's switch).
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "THP_MEM_ALLOC_ENABLE": "1",
}

# As ranks have it where each has a core, for whatever is compared with them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **ALLOCATOR}
