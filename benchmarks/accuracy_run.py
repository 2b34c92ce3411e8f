"""Trains one cell of the accuracy grid to its plateau, in this process."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from at_once import AtOnce, SumAtOnce

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.cli import main
from gnnpipe_trainer.learning_rate import learning_rate
from gnnpipe_trainer.optimizer import make_optimizer, take_step
from gnnpipe_trainer.validation import best_of, evaluations, is_evaluated
from gnnpipe_trainer.weights import averages_of, stage_state

Result = dict[str, Any]


@contextmanager
def alone() -> Iterator[None]:
    """A process group of one, as the engine wants one; afterwards the process is as it was."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # numbers near zero, as Adam's second moments become, would be slow
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def train_cell(manifest: dict[str, Any], folder: Path, sums: type[SumAtOnce] = SumAtOnce) -> Result:
    """Best validation, the test accuracy there, and the course of validation and loss."""
    job = parse_job(manifest)
    training = job.spec.training
    start = time.process_time()
    run = AtOnce.of(job, folder, sums)
    optimizer = make_optimizer(training, run.engine.parameters, run.engine.model.blocks)
    averages = averages_of(run.job.spec.training, stage_state(run.engine, 0))
    best, validation, losses = (-1, -1.0, 0.0), [], []
    stopping = training.early_stopping
    for epoch in range(training.epochs):
        loss = run.train_epoch(epoch)
        take_step(optimizer, learning_rate(training, epoch))
        for average in averages:
            average.follow(epoch)
        if not math.isfinite(loss):
            break
        if is_evaluated(epoch, training):
            accuracy = best_of(evaluations(run.engine, run.engine.groups.control, averages))
            validation.append(round(accuracy.val, 4))
            losses.append(round(loss, 4))
            if accuracy.val > best[1]:
                best = (epoch, accuracy.val, accuracy.test)
            if stopping is not None and epoch - best[0] >= stopping.patience:
                break
    return {
        "epochs": epoch + 1,
        "bestEpoch": best[0] + 1,
        "val": round(best[1], 4),
        "test": round(best[2], 4),
        "lastTest": round(accuracy.test, 4),
        "cpuSeconds": round(time.process_time() - start, 1),
        "settled": _settled(run),
        "staleEdges": round(run.stale_edges, 4),
        "validation": validation,
        "loss": losses,
    }


def _settled(run: AtOnce) -> dict[str, Any]:
    """What auto came to in this run: a cell's manifest does not tell, and what it means may change."""
    history, averaging = run.job.spec.parallelism.history, run.job.spec.training.averaging
    return {"gradients": history.gradients, "correction": history.correction, "averaging": averaging.mode}


def train_in_stages(manifest: dict[str, Any], folder: Path) -> Result:
    """The same with `gnnpipe run`: a process per rank."""
    with TemporaryDirectory() as out:
        written = Path(out) / "job.json"
        written.write_text(json.dumps(manifest))
        if main(["run", str(written), "--out", out]) != 0:
            raise RuntimeError(f"gnnpipe run failed: {(Path(out) / 'train.log').read_text()[-2000:]}")
        result = json.loads((Path(out) / "result.json").read_text())
        lines = [json.loads(row) for row in (Path(out) / "epochs.jsonl").read_text().splitlines()]
    known = [line for line in lines if line.get("accuracy")]
    return {
        "epochs": result["epochs"],
        "bestEpoch": result["bestEpoch"] + 1,
        "val": round(result["accuracy"]["val"], 4),
        "test": round(result["accuracy"]["test"], 4),
        "lastTest": round(known[-1]["accuracy"]["test"], 4),
        "validation": [round(line["accuracy"]["val"], 4) for line in known],
        "loss": [round(line["loss"], 4) for line in known],
    }
