"""Forecast against measured, on this machine: `python benchmarks/forecast.py OUT.json [--quick]`.

Runs each case with the real engine under `gnnpipe run`, compares bytes, memory and epoch time with what
`gnnpipe plan` says, and whether the plan that it would take is the quickest of its group. Calibrate first, on an idle
machine: `gnnpipe plan examples/quickstart.yaml --calibrate`. All links are the loopback; for another speed run it in
network namespaces behind `tc qdisc ... tbf`, calibrated there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.planning.main import make_planner

EPOCHS = 12
GRAPHS = {
    "small": {"source": "synthetic", "vertices": 8_000, "averageDegree": 20},
    "dense": {"source": "synthetic", "vertices": 12_000, "averageDegree": 60},
}
MODELS = {
    "gcnii": {"kind": "gcnii", "layers": 8, "hidden": 64},
    "resgcn": {"kind": "resgcn", "layers": 8, "hidden": 128, "dropout": 0.3},
}
CUTS = [(1, 1, 1), (1, 2, 2), (2, 1, 8), (2, 1, 32), (2, 2, 8), (4, 1, 16)]  # stages, ways, chunks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--quick", action="store_true", help="four cases only, to see that it works")
    given = parser.parse_args()
    cases = [(graph, model, cut) for graph in GRAPHS for model in MODELS for cut in CUTS]
    load_before = os.getloadavg()[0]
    results = [run(*case) for case in (cases[:4] if given.quick else cases)]
    content = {
        "machine": {"cores": os.cpu_count(), "processor": platform.processor(), "load": load_before},
        "summary": summary(results),
        "cases": results,
    }
    given.out.write_text(json.dumps(content, indent=2) + "\n")
    sys.stdout.write(table(results) + "\n\n" + json.dumps(content["summary"], indent=2) + "\n")
    return 0


def run(graph: str, model: str, cut: tuple[int, int, int]) -> dict[str, Any]:
    """One case, trained and forecast."""
    stages, ways, chunks = cut
    manifest = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": f"{model}-{graph}"},
        "spec": {
            "graph": GRAPHS[graph],
            "model": MODELS[model],
            "training": {"epochs": EPOCHS, "evaluateEvery": EPOCHS, "device": "cpu"},
            "parallelism": {"stages": stages, "ways": ways, "chunks": chunks},
        },
    }
    job = parse_job(manifest)
    forecast = make_planner(job, Path()).forecast(make_plan(job))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(manifest))
        command = [sys.executable, "-m", "gnnpipe_trainer.cli", "run", str(path), "--out", f"{folder}/out"]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        result = json.loads((Path(folder) / "out" / "result.json").read_text())
    memory = [forecast.memory[rank // ways].total for rank in range(stages * ways)]
    return {
        "graph": graph,
        "model": model,
        "cut": list(cut),
        "seconds": {"measured": result["seconds"]["epochMedian"], "forecast": forecast.seconds},
        "bytes": {"measured": result["bytesPerEpoch"], "forecast": forecast.volume.as_dict()},
        "memory": {"measured": result["peakMemoryBytes"], "forecast": memory},
        "bubble": {"measured": result["bubble"]["measured"], "forecast": forecast.epoch.bubble},
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    times = [abs(r["seconds"]["forecast"] / r["seconds"]["measured"] - 1) for r in results]
    memory = [
        abs(ours / real - 1)
        for r in results
        for ours, real in zip(r["memory"]["forecast"], r["memory"]["measured"], strict=True)
    ]
    return {
        "cases": len(results),
        "timeErrorMedian": statistics.median(times),
        "timeErrorWorst": max(times),
        "bytesExact": sum(r["bytes"]["forecast"] == r["bytes"]["measured"] for r in results),
        "memoryErrorMedian": statistics.median(memory),
        "memoryErrorWorst": max(memory),
        "choices": choices(results),
    }


def choices(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each graph, model and number of ranks with a choice: how much slower the forecast's pick really is."""

    def group(result: dict[str, Any]) -> tuple[str, str, int]:
        return result["graph"], result["model"], result["cut"][0] * result["cut"][1]

    found = []
    for key, members in groupby(sorted(results, key=group), key=group):
        rivals = list(members)
        if len(rivals) > 1:
            picked = min(rivals, key=lambda r: r["seconds"]["forecast"])["seconds"]["measured"]
            quickest = min(r["seconds"]["measured"] for r in rivals)
            found.append({"case": list(key), "slowerThanBest": picked / quickest - 1})
    return found


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| graph | model | stages x ways, chunks | measured ms | forecast ms | error |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        measured, forecast = r["seconds"]["measured"], r["seconds"]["forecast"]
        stages, ways, chunks = r["cut"]
        lines.append(
            f"| {r['graph']} | {r['model']} | {stages} x {ways}, {chunks} | {1000 * measured:.1f} "
            f"| {1000 * forecast:.1f} | {100 * (forecast / measured - 1):+.0f}% |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
