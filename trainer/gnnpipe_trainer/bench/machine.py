"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """For the head of a results file. The load is what others did while it was made."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memoryBytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "torchGeometric": version("torch-geometric"),
        "loadAtStart": round(os.getloadavg()[0], 2),
    }


def machine_sentence(machine: dict[str, Any]) -> str:
    gib = machine["memoryBytes"] / 2**30
    versions = f"torch {machine['torch']}, torch-geometric {machine['torchGeometric']}"
    return f"{machine['processor']}, {machine['cores']} cores, {gib:.0f} GiB, {versions}, Python {machine['python']}"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()
