"""`gnnpipe run`: trains a manifest on this machine and shows how it goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_trainer.checkpoint.folder import Damaged, found, read_manifest
from gnnpipe_trainer.checkpoint.identity import as_of_today
from gnnpipe_trainer.endings import PARENT, SCRATCH_PREFIX, STARTED
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.planning.main import make_planner
from gnnpipe_trainer.planning.settle import ranks_here, settle
from gnnpipe_trainer.planning.volume import volume
from gnnpipe_trainer.rank_environment import for_ranks
from gnnpipe_trainer.view import LiveView, final_table, show_error

POLL_SECONDS = 0.1


def run_job(
    job: GNNPipeJob, out: Path, *, fresh: bool, compare: bool, profile: bool, manifest_folder: Path
) -> int:
    """Train; returns the exit code of the contract."""
    view = LiveView()
    try:
        view.note("Preparing the graph")
        if job.spec.parallelism.has_auto:
            settled = settle(job, manifest_folder, ranks_here(job))
            job = settled.job
            view.note(f"Planned: {settled.plan.in_words()}. {settled.reason}")
        plan = make_plan(job)
        chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
    except ValueError as mistake:  # BadGraph, or BadModel, whose room needs torch to be imported
        show_error(str(mistake))
        return ExitCode.INVALID
    try:
        if fresh:
            start_over(out)
        (out / "full-batch" if compare else out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        show_error(f"--out: {out} cannot be used ({error.strerror}); name another folder")
        return ExitCode.INVALID
    with _profiled(out, job, plan) if profile else nullcontext():
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


def _profiled(out: Path, job: GNNPipeJob, plan: Plan) -> AbstractContextManager[None]:
    from gnnpipe_trainer.trace import profiled  # needs torch, whose import takes longer than all else here

    return profiled(out, job, plan)


def as_full_batch(job: GNNPipeJob) -> GNNPipeJob:
    """The same training on one device, without chunks or history."""
    parallelism = job.spec.parallelism.model_copy(update={"stages": 1, "ways": 1, "chunks": 1})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"parallelism": parallelism})})


def graph_parallel_bytes(job: GNNPipeJob, plan: Plan, manifest_folder: Path) -> int | None:
    """What graph parallelism over as many ranks would send per epoch; None for one rank."""
    if plan.ranks == 1:
        return None
    planner = make_planner(job, manifest_folder)
    rival = planner.plan(stages=1, ways=plan.ranks)
    return volume(job, rival, planner.shape, planner.graph.cut(rival.ways, rival.chunks, rival.stages)).total


def _train(
    job: GNNPipeJob, plan: Plan, out: Path, folder: Path, view: LiveView
) -> tuple[int, dict[str, Any] | None]:
    """Train in `out`, from where the last run in it stopped."""
    done = finished(job, out)
    if done is not None:
        view.note(f"{out} holds this run, finished after {done['epochs']} epochs; --fresh starts over.")
        return ExitCode.DONE, done
    try:
        temporary = tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=out, ignore_cleanup_errors=True)
    except OSError as error:
        show_error(f"--out: {out} cannot be written ({error.strerror}); name another folder")
        return ExitCode.INVALID, None
    with temporary as scratch:
        return _train_in(Path(scratch), job, plan, out, folder, view)


def _train_in(
    scratch: Path, job: GNNPipeJob, plan: Plan, out: Path, folder: Path, view: LiveView
) -> tuple[int, dict[str, Any] | None]:
    manifest = scratch / "manifest.json"
    manifest.write_text(job.model_dump_json(by_alias=True, exclude_none=True))
    paths = [str(path) for path in (manifest, out.resolve(), folder.resolve(), scratch.resolve())]
    with (out / "train.log").open("ab") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "gnnpipe_trainer.launch", str(plan.ranks), *paths],
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process only, which then asks the agent to stop
            env={
                **os.environ,
                **for_ranks(plan.ranks, os.environ, scratch.resolve()),
                PARENT: str(os.getpid()),
            },
        )
    view.start(job, plan)
    try:
        with stop_politely(agent, view) as asked:
            _watch(agent, scratch, out, view)
            code = agent.wait()
    finally:
        view.finish()
    outcome = scratch / "outcome.txt"
    sentence = outcome.read_text() if outcome.exists() else ""
    if code == ExitCode.PREEMPTED or (asked and code < 0):
        view.note(f"Stopped; run it again with --out {out} to go on.")
        return ExitCode.PREEMPTED, None
    if code == ExitCode.INVALID and sentence:
        show_error(sentence)
        return code, None
    if code != ExitCode.DONE:
        show_error(f"{sentence or 'training ended unexpectedly'}; the log is {out / 'train.log'}")
        return (code if code in set(ExitCode) else ExitCode.FAILED), None
    return code, json.loads((out / "result.json").read_text())


def _watch(agent: subprocess.Popen[bytes], scratch: Path, out: Path, view: LiveView) -> None:
    """Show how it goes, until the agent has ended."""
    start = await_start(scratch, agent)
    if start is None:
        return
    for warning in start["warnings"]:
        view.note(warning)
    if start["checkpoint"]:
        view.note(f"Going on after epoch {start['epoch']}, from {out / 'checkpoints' / start['checkpoint']}")
    for line in follow(out / "epochs.jsonl", agent, start["epoch"]):
        view.epoch(line)


@contextmanager
def stop_politely(agent: subprocess.Popen[bytes], view: LiveView) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM ask the ranks to write a checkpoint and stop; asked twice, they are killed.

    Yields the signals that have come so far.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        view.note("Stopping at once" if asked else "Stopping: writing a checkpoint. Once more stops at once")
        agent.send_signal(signal.SIGKILL if asked else signal.SIGTERM)
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def await_start(scratch: Path, agent: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Where the ranks say that they begin; None if they end before they say it."""
    said = scratch / STARTED
    while not said.exists():
        if agent.poll() is not None:
            return None
        time.sleep(POLL_SECONDS)
    start: dict[str, Any] = json.loads(said.read_text())
    return start


def follow(path: Path, agent: subprocess.Popen[bytes], first_epoch: int = 0) -> Iterator[dict[str, Any]]:
    """Lines of epochs.jsonl from an epoch on, as they are written, until the agent has ended."""
    position, known = 0, 0
    while True:
        ended = agent.poll() is not None
        if path.exists():
            with path.open() as file:
                inode = os.fstat(file.fileno()).st_ino
                if known and inode != known:  # written anew: training went back to a checkpoint
                    position = 0
                known = inode
                file.seek(position)
                while (line := file.readline()).endswith("\n"):
                    position = file.tell()
                    record = json.loads(line)
                    if record["epoch"] >= first_epoch:
                        yield record
        if ended:
            return
        time.sleep(POLL_SECONDS)


def finished(job: GNNPipeJob, out: Path) -> dict[str, Any] | None:
    """result.json of a run of this very job that has nothing left to do."""
    newest = found(out / "checkpoints")
    try:
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
        content = read_manifest(newest[0])
        before = as_of_today(content["job"])["spec"]
    except (OSError, ValueError, IndexError, KeyError, Damaged):
        return None
    now = job.manifest()["spec"]
    same = all(before.get(part) == now.get(part) for part in ("graph", "model", "training", "parallelism"))
    return (
        result if same and (out / "model.pt").exists() and result["epochs"] == content["epoch"] + 1 else None
    )


def start_over(out: Path) -> None:
    """Remove what runs leave in their folder, and nothing else that may be there."""
    for name in ("result.json", "epochs.jsonl", "model.pt", "train.log"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    if (out / "full-batch").is_dir():
        start_over(out / "full-batch")
