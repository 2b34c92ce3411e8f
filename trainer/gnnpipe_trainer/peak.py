"""The most memory that this process has held."""

from __future__ import annotations

import re
import resource
from pathlib import Path


def peak_resident_bytes() -> int:
    """Of its own: what getrusage says begins with what its parent held when it started it."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:  # not Linux
        found = None
    return 1024 * int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
