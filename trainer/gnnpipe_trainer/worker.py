"""One rank: forked by the launcher (launch.py), ends with an exit code that says why."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # an optimizer's first step would load it: better once than in every rank
import torch.distributed as dist

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import TrainingSpec
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.identity import BadCheckpoint
from gnnpipe_trainer.endings import (
    LOST_PEER_EXIT,
    STOPPED,
    Loss,
    die_with_parent,
    pid_file,
    sentence_file,
)
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.models.block import BadModel
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.staleness.guard import Diverged
from gnnpipe_trainer.store import await_store, job_store
from gnnpipe_trainer.train import train
from gnnpipe_trainer.watchdog import Watchdog, name_of

log = logging.getLogger("gnnpipe")

SWITCH_SECONDS = 0.0005  # of a thread's turn at the interpreter while training waits; Python's is 0.005


def main(arguments_given: Sequence[str]) -> int:
    die_with_parent(signal.SIGKILL)
    sys.setswitchinterval(SWITCH_SECONDS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is handled by the launcher
    format = f"%(asctime)s rank {os.environ['RANK']}: %(message)s"
    logging.basicConfig(level=logging.INFO, format=format, force=True)  # in place of the launcher's
    arguments = _arguments(arguments_given)
    scratch: Path = arguments.scratch
    pid_file(scratch, int(os.environ["RANK"])).write_text(str(os.getpid()))
    job = parse_job(json.loads(arguments.manifest.read_text()))
    watchdog: Watchdog | None = None
    try:
        plan = make_plan(job)
        topology = Topology(plan.stages, plan.ways, int(os.environ["RANK"]))
        watchdog = Watchdog(job_store, topology, job.spec.training.stall_timeout_seconds, scratch)
        watchdog.start()
        _join(job.spec.training)
        finished = train(job, arguments.out, arguments.folder, scratch)
        watchdog.stop()
        dist.destroy_process_group()
        if not finished:
            (scratch / STOPPED).touch()
        return ExitCode.DONE
    except (BadGraph, BadModel, BadCheckpoint, Diverged) as mistake:  # again would end the same way
        return _fail(scratch, ExitCode.INVALID, str(mistake))
    except dist.DistError as error:  # raised by torch.distributed: a peer went away or did not answer
        return _lost_peer(scratch, error, watchdog)
    except RuntimeError as error:
        if _is_connection_error(error):
            return _lost_peer(scratch, error, watchdog)
        return _crash(scratch, error)
    except Exception as error:
        return _crash(scratch, error)


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--manifest", "--out", "--folder", "--scratch"):
        parser.add_argument(name, type=Path, required=True)
    return parser.parse_args(given)


def _join(training: TrainingSpec) -> None:
    """NCCL where this rank has a GPU, gloo elsewhere; the code is the same from here on."""
    wants_gpu = training.device == "cuda" or (training.device == "auto" and torch.cuda.is_available())
    timeout = timedelta(seconds=training.stall_timeout_seconds)
    if int(os.environ["RANK"]) > 0:  # without an agent rank 0 is the one that makes it
        await_store()
    dist.init_process_group("cpu:gloo,cuda:nccl" if wants_gpu else "gloo", timeout=timeout)


def _crash(scratch: Path, error: Exception) -> int:
    log.exception("Training failed")
    return _fail(scratch, ExitCode.FAILED, f"{type(error).__name__}: {error}".splitlines()[0])


def _lost_peer(scratch: Path, error: Exception, watchdog: Watchdog | None) -> int:
    log.warning("Lost another rank: %s", str(error).splitlines()[0])
    if watchdog is None:
        return _fail(scratch, LOST_PEER_EXIT, "lost the connection to another rank")
    silent = watchdog.silent_ranks()
    known = watchdog.verdict()
    if known:  # the connection was lost because another rank had acted on it
        known.leave_in(scratch)
        return _fail(scratch, LOST_PEER_EXIT, known.sentence)
    names = ", ".join(name_of(watchdog.topology, rank) for rank in silent)
    sentence = f"lost the connection to {names or 'another rank'}"
    if silent:
        watchdog.tell_everyone(Loss(silent, sentence))
    return _fail(scratch, LOST_PEER_EXIT, sentence)


def _fail(scratch: Path, code: int, sentence: str) -> int:
    sentence_file(scratch, int(os.environ["RANK"])).write_text(sentence)
    return code


def _is_connection_error(error: RuntimeError) -> bool:
    words = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Timed out waiting",
        "timeout caused pair closure",
        "Wait timeout",
        "Broken pipe",
        "gloo",
    )
    return any(word.lower() in str(error).lower() for word in words)
