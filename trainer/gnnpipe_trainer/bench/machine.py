"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """For the head of a results file."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memoryBytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "torchGeometric": version("torch-geometric"),
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


class Others:
    """How many cores others kept busy since this was made: what spoils a clock."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def busy_cores(self) -> float:
        elapsed = time.perf_counter() - self._start
        others = (_busy_seconds() - self._busy) - (_own_seconds() - self._own)
        return round(max(0.0, others) / elapsed, 2)


def _busy_seconds() -> float:
    """Of all cores since boot; what the hypervisor gave to other machines counts too."""
    user, nice, system, _, _, irq, softirq, steal, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Of this process and those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
