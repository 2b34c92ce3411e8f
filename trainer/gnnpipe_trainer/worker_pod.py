"""`gnnpipe worker`: a pod's main process. Trains as the stage that the environment says, and leaves a last word.

The names in the environment are the contract with the operator (gnnpipe_api/contract.py).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gnnpipe_api import contract
from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import InvalidJob
from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.launch import Outcome, Place, launch, rank_nursery
from gnnpipe_trainer.meter import ENV_METER
from gnnpipe_trainer.models.block import BadModel
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.monitor import Monitor, serving
from gnnpipe_trainer.nursery import Nursery
from gnnpipe_trainer.pipeline.schedule import ideal_bubble, slot_count
from gnnpipe_trainer.pod import (
    MESSAGE_BYTES,
    code_folder,
    compact,
    leave_word,
    read_job,
    wrong,
)
from gnnpipe_trainer.store import answers

log = logging.getLogger("gnnpipe")

# Where a pod is not what it usually is; tests use it.
ENV_MONITOR_ADDRESS = "GNNPIPE_MONITOR_ADDRESS"  # host:port

ASK_SECONDS = 1.0
REMIND_EVERY = 60  # times asked


class AskedToStop(Exception):
    """SIGTERM, while there is nothing to save yet."""


@dataclass(frozen=True)
class Pod:
    """What the environment says."""

    job: GNNPipeJob
    plan: Plan
    stage: int
    attempt: int
    namespace: str
    master_address: str
    master_port: int
    out: Path

    @property
    def place(self) -> Place:
        plan = self.plan
        return Place(plan.ways, plan.stages, self.stage, self.master_address, self.master_port)


def main() -> int:
    """Train to the end; the exit code and the termination message say how it went."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, _stop)
    message = ""
    try:
        pod = read_pod(os.environ)
        with rank_nursery(pod.place) as nursery:  # before the monitor's threads are there
            outcome = train(pod, nursery)
        if outcome.code == ExitCode.DONE and pod.stage == 0:
            message = summary(pod.out / "result.json")
    except (InvalidJob, BadGraph, BadModel) as mistake:
        outcome = Outcome(ExitCode.INVALID, str(mistake))
    except AskedToStop:
        outcome = Outcome(ExitCode.PREEMPTED, "was asked to stop (SIGTERM)")
    if outcome.sentence:
        log.error("%s", outcome.sentence)
    leave_word(message or outcome.sentence)
    return outcome.code


def read_pod(environment: Mapping[str, str]) -> Pod:
    """Raises InvalidJob where the environment is not what an operator writes."""
    job = read_job(environment)
    if job.spec.parallelism.has_auto:
        raise wrong("spec.parallelism still says auto; workers get the numbers that a planner has settled on")
    try:
        stage = int(environment[contract.ENV_STAGE])
        plan = make_plan(job)
        if not 0 <= stage < plan.stages:
            raise ValueError(f"{contract.ENV_STAGE} is {stage}, but the job has {plan.stages} stages")
        return Pod(
            job,
            plan,
            stage,
            int(environment.get(contract.ENV_ATTEMPT, "0")),
            environment.get(contract.ENV_NAMESPACE, ""),
            environment.get(contract.ENV_MASTER_ADDR, "127.0.0.1"),
            int(environment.get(contract.ENV_MASTER_PORT, contract.MASTER_PORT)),
            Path(environment.get(contract.ENV_OUT, contract.OUT_MOUNT)),
        )
    except KeyError as missing:
        raise wrong(f"{missing.args[0]} is not set; gnnpipe worker is started by the operator") from None
    except ValueError as error:
        raise wrong(str(error)) from None


def train(pod: Pod, nursery: Nursery) -> Outcome:
    if contract.CACHE_MOUNT and Path(contract.CACHE_MOUNT).is_dir():
        os.environ.setdefault("GNNPIPE_CACHE", contract.CACHE_MOUNT)
    host, port = _monitor_address()
    with tempfile.TemporaryDirectory(prefix="gnnpipe-", dir=_memory_folder()) as temporary:
        scratch = Path(temporary)
        os.environ[ENV_METER] = temporary
        monitor = make_monitor(pod, scratch)
        with serving(monitor, host, port):
            prepare(pod)
            monitor.phase = "waiting"
            wait_for_stage_0(pod)
            monitor.phase = "training"
            manifest = scratch / "manifest.json"
            manifest.write_text(os.environ[contract.ENV_MANIFEST])
            outcome = launch(pod.place, nursery, manifest, pod.out, code_folder(), scratch)
            monitor.phase = "done" if outcome.code == ExitCode.DONE else "failed"
            return outcome


def prepare(pod: Pod) -> None:
    """The chunked graph goes to the cache before any rank is there to time out; bad data and models show now."""
    pod.out.mkdir(parents=True, exist_ok=True)
    graph = chunked_graph(pod.job.spec.graph, pod.plan.ways, pod.plan.chunks, code_folder())
    build_model(pod.job.spec.model, graph.num_features, graph.num_classes, code_folder())
    del graph
    ctypes.CDLL(None).malloc_trim(0)  # as ranks do, this process would keep what it has freed


def wait_for_stage_0(pod: Pod) -> None:
    """Pods start in any order, and one may wait for its node for hours: the operator knows when that is too long.

    Stage 0 needs its own name; the others need it to listen. Waited for here and not in torch, where a signal to
    stop would go unheard.
    """
    port = None if pod.stage == 0 else pod.master_port
    asked = 0
    while not answers(pod.master_address, port):
        if asked % REMIND_EVERY == 0:
            log.info("Waiting for stage 0 at %s", pod.master_address)
        asked += 1
        time.sleep(ASK_SECONDS)


def make_monitor(pod: Pod, folder: Path) -> Monitor:
    plan = pod.plan
    return Monitor(
        folder=folder,
        job=pod.job.metadata.name,
        namespace=pod.namespace,
        stage=pod.stage,
        attempt=pod.attempt,
        epochs=pod.job.spec.training.epochs,
        ideal_bubble=round(ideal_bubble(plan.stages, slot_count(plan.stages, plan.ways, plan.chunks)), 4),
    )


def summary(result: Path) -> str:
    """result.json as small as a termination message must be."""
    try:
        content = json.loads(result.read_text())
    except (OSError, ValueError) as error:
        return f"training is done, but {result} cannot be read: {error}"
    content["peakMemoryBytes"] = [max(content["peakMemoryBytes"])]  # of thousands of ranks
    if len(compact(content).encode()) > MESSAGE_BYTES:
        content.pop("plan")  # the operator knows it
    return compact(content)


def _monitor_address() -> tuple[str, int]:
    host, _, port = os.environ.get(ENV_MONITOR_ADDRESS, "").rpartition(":")
    return host, int(port or contract.MONITOR_PORT)


def _memory_folder() -> str | None:
    """Memory-backed where there is such a folder: what ranks and monitor exchange never waits for a disk."""
    return contract.SHM_MOUNT if os.access(contract.SHM_MOUNT, os.W_OK) else None


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Until the ranks run, there is nothing to save; from then on the launcher has this signal."""
    raise AskedToStop
