"""Measure this machine: ranks of its own run the engine's stages on small graphs, and talk (probe.py)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from gnnpipe_trainer.graph.cache import default_folder
from gnnpipe_trainer.planning.fitting import Answer, hardware_of
from gnnpipe_trainer.planning.hardware import Hardware
from gnnpipe_trainer.planning.runs import read_amounts
from gnnpipe_trainer.planning.stored import save_calibration
from gnnpipe_trainer.rank_environment import ONE_THREAD

TIMEOUT_SECONDS = 300


def calibrate(folder: Path | None = None) -> Hardware:
    """About 10 seconds on two idle cores; the result is remembered in the cache folder."""
    measured = hardware_of(measure(), cores_here())
    save_calibration(measured, folder or default_folder())
    return measured


def measure() -> list[Answer]:
    """What the ranks found (ranks.py), two for each core; the first one's answer also tells how much work it was."""
    cores = cores_here()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        number = str(port.getsockname()[1])
        port.close()
        command = [sys.executable, "-m", "gnnpipe_trainer.planning.probe", str(cores), number, folder]
        if subprocess.run(command, env={**os.environ, **ONE_THREAD}, timeout=TIMEOUT_SECONDS).returncode:
            raise RuntimeError("a rank of the calibration failed; its error stands above")
        answers = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(2 * cores)]
        answers[0] |= read_amounts(Path(folder))
        return answers


def cores_here() -> int:
    return len(os.sched_getaffinity(0))
