"""Measure this machine: the engine's own stages on small graphs, and a link between two ranks.

What an action took is a sum of amounts (work.py) times costs (hardware.py); the costs that explain all measured
actions best, none of them negative, are kept in the cache folder and used by every later forecast.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from gnnpipe_trainer.bench.measure import ENVIRONMENT
from gnnpipe_trainer.graph.cache import default_folder
from gnnpipe_trainer.planning.hardware import CPU, Costs, Hardware, Link
from gnnpipe_trainer.planning.samples import RUNS, Bench, Sample, typical
from gnnpipe_trainer.planning.simulate import Cores
from gnnpipe_trainer.planning.stored import save_calibration

TIMEOUT_SECONDS = 300
UNITS = [field.name for field in fields(Costs) if field.name not in ("message", "byte")]


def calibrate(folder: Path | None = None) -> Hardware:
    """About ten seconds on an idle machine; the result is remembered in the cache folder."""
    measured = hardware_of(measure())
    save_calibration(measured, folder or default_folder())
    return measured


def measure() -> list[dict[str, Any]]:
    """What the ranks of probe.py found, one for each core."""
    ranks = max(2, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as folder, socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        number = str(port.getsockname()[1])
        port.close()
        answers = [Path(folder) / f"rank{rank}.json" for rank in range(ranks)]
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "gnnpipe_trainer.planning.probe",
                    str(rank),
                    str(ranks),
                    number,
                    str(out),
                ],
                env={**os.environ, **ENVIRONMENT},  # as ranks have it
            )
            for rank, out in enumerate(answers)
        ]
        try:
            if any(process.wait(TIMEOUT_SECONDS) for process in processes):
                raise RuntimeError("a rank of the calibration failed; its error stands above")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        return [json.loads(answer.read_text()) for answer in answers]


def hardware_of(ranks: list[dict[str, Any]]) -> Hardware:
    """The machine that explains what was measured, by the ranks of one calibration or of several."""
    cores = len(os.sched_getaffinity(0))
    first = [rank for rank in ranks if "alone" in rank]

    def middle(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(value, first))

    # What ranks do to each other's processor time is in the samples; what the clock shows is what they suffer.
    shared = middle(lambda rank: rank["crowded"]["cores"] / rank["alone"]["cores"])
    crowding = middle(lambda rank: rank["crowded"]["clock"] / rank["alone"]["clock"])
    message = middle(lambda rank: rank["small"]["cores"])
    byte = middle(lambda rank: max(0.0, rank["large"]["cores"] - rank["small"]["cores"]) / rank["bytes"])
    travel = middle(lambda rank: max(1e-9, rank["large"]["oneWay"] - rank["small"]["oneWay"]) / rank["bytes"])
    latency = max(1e-6, middle(lambda rank: rank["small"]["oneWay"]) - 2 * message)
    link = Link(1 / travel, latency)
    return Hardware(
        f"this machine ({cores} cores)",
        fit(samples(ranks, max(1.0, shared)), message, byte),
        memory_bytes=None,
        baseline_bytes=middle(lambda rank: rank["baseline"]),
        near=link,
        far=link,
        ranks_per_machine=CPU.ranks_per_machine,
        cores=Cores(cores, max(1.0, crowding)),
    )


def samples(ranks: list[dict[str, Any]], crowding: float = 1.0) -> list[Sample]:
    """Each action as it takes when nobody else computes: the median of what was measured, freed of crowding."""
    found = []
    for number, run in enumerate(RUNS):
        best = typical([rank["together"][number] for rank in ranks])
        found += Bench(run).samples([{action: t / crowding for action, t in stage.items()} for stage in best])
    return found


def fit(samples: list[Sample], message: float = 0.0, byte: float = 0.0) -> Costs:
    """The costs that explain the samples with the least relative error."""
    rows = np.array([[sample.amounts.get(unit, 0.0) for unit in UNITS] for sample in samples])
    took = np.array([sample.seconds for sample in samples])
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    found, _ = nnls(rows / scale / took[:, None], np.ones(len(samples)))
    return Costs(**dict(zip(UNITS, map(float, found / scale), strict=True)), message=message, byte=byte)


def errors(samples: list[Sample], costs: Costs) -> list[float]:
    """Relative error of each sample under these costs."""
    values = asdict(costs)
    return [
        sum(values[unit] * amount for unit, amount in sample.amounts.items()) / sample.seconds - 1
        for sample in samples
    ]
