"""`gnnpipe run`: trains a manifest on this machine and shows how it goes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_trainer.graph.cache import chunked_graph, mirrors_for
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.models.block import BadModel
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.view import LiveView, final_table, show_error

POLL_SECONDS = 0.1


def run_job(
    job: GNNPipeJob, out: Path, *, fresh: bool, compare: bool, profile: bool, manifest_folder: Path
) -> int:
    """Train; returns the exit code of the contract."""
    plan = make_plan(job)
    view = LiveView()
    try:
        view.note("Preparing the graph")
        graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
        build_model(job.spec.model, graph.num_features, graph.num_classes, manifest_folder)
    except (BadGraph, BadModel) as mistake:
        show_error(str(mistake))
        return ExitCode.INVALID
    if fresh:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    code, result = _train(job, plan, out, manifest_folder, view)
    if code != ExitCode.DONE or result is None:
        return code
    reference = None
    if compare:
        view.note("Training the same model without a pipeline, to compare")
        plain = as_full_batch(job)
        code, reference = _train(plain, make_plan(plain), out / "full-batch", manifest_folder, LiveView())
    graph_bytes = graph_parallel_bytes(job, plan, manifest_folder)
    final_table(result, reference, graph_bytes)
    return code


def as_full_batch(job: GNNPipeJob) -> GNNPipeJob:
    """The same training on one device, without chunks or history."""
    parallelism = job.spec.parallelism.model_copy(update={"stages": 1, "ways": 1, "chunks": 1})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})


def graph_parallel_bytes(job: GNNPipeJob, plan: Plan, manifest_folder: Path) -> int | None:
    """What graph parallelism over as many ranks would send per epoch; None for one rank."""
    if plan.ranks == 1:
        return None
    mirrors = mirrors_for(job.spec.graph, plan.ranks, manifest_folder)
    return 2 * 4 * job.spec.model.hidden * job.spec.model.layers * mirrors


def _train(
    job: GNNPipeJob, plan: Plan, out: Path, folder: Path, view: LiveView
) -> tuple[int, dict[str, Any] | None]:
    out.mkdir(parents=True, exist_ok=True)
    epochs = out / "epochs.jsonl"
    epochs.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="gnnpipe-") as temporary, (out / "train.log").open("ab") as log:
        scratch = Path(temporary)
        manifest = scratch / "manifest.json"
        manifest.write_text(job.model_dump_json(by_alias=True, exclude_none=True))
        paths = [str(path) for path in (manifest, out.resolve(), folder.resolve(), scratch)]
        agent = subprocess.Popen(
            [sys.executable, "-m", "gnnpipe_trainer.launch", str(plan.ranks), *paths],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process only, which then asks the agent to stop
        )
        view.start(job, plan)
        try:
            for line in follow(epochs, agent):
                view.epoch(line)
        except KeyboardInterrupt:
            view.note("Stopping: writing a checkpoint")
            agent.send_signal(signal.SIGTERM)
        code = agent.wait()
        view.finish()
        outcome = scratch / "outcome.txt"
        sentence = outcome.read_text() if outcome.exists() else ""
    if code != ExitCode.DONE:
        show_error(f"{sentence or 'training ended unexpectedly'}; the log is {out / 'train.log'}")
        return (code if code in set(ExitCode) else ExitCode.FAILED), None
    return code, json.loads((out / "result.json").read_text())


def follow(path: Path, agent: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Lines of epochs.jsonl as they are written, until the agent has ended."""
    position = 0
    while True:
        ended = agent.poll() is not None
        if path.exists():
            with path.open() as file:
                file.seek(position)
                while (line := file.readline()).endswith("\n"):
                    position = file.tell()
                    yield json.loads(line)
        if ended:
            return
        time.sleep(POLL_SECONDS)


