"""One rank: started by torchrun's agent (launch.py), ends with an exit code that says why."""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import TrainingSpec
from gnnpipe_api.load import parse_job
from gnnpipe_trainer.checkpoint.identity import BadCheckpoint
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.models.block import BadModel
from gnnpipe_trainer.train import train

log = logging.getLogger("gnnpipe")

LOST_PEER_EXIT = 70  # inside one launch only: another rank is the cause, this one noticed
LOST_PEER_PATIENCE_SECONDS = 3.0  # time for the agent to see the rank that really died, and to end this one


def main() -> int:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is handled by the launcher
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rank {os.environ['RANK']}: %(message)s")
    arguments = _arguments()
    job = parse_job(json.loads(arguments.manifest.read_text()))
    try:
        _join(job.spec.training)
        train(job, arguments.out, arguments.folder, arguments.scratch)
        dist.destroy_process_group()
        return ExitCode.DONE
    except (BadGraph, BadModel, BadCheckpoint) as mistake:
        return _fail(arguments.scratch, ExitCode.INVALID, str(mistake))
    except dist.DistError as error:  # raised by torch.distributed: a peer went away or did not answer
        return _lost_peer(arguments.scratch, error)
    except RuntimeError as error:
        if _is_connection_error(error):
            return _lost_peer(arguments.scratch, error)
        return _crash(arguments.scratch, error)
    except Exception as error:
        return _crash(arguments.scratch, error)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("--manifest", "--out", "--folder", "--scratch"):
        parser.add_argument(name, type=Path, required=True)
    return parser.parse_args()


def _join(training: TrainingSpec) -> None:
    """NCCL where this rank has a GPU, gloo elsewhere; the code is the same from here on."""
    wants_gpu = training.device == "cuda" or (training.device == "auto" and torch.cuda.is_available())
    timeout = timedelta(seconds=training.stall_timeout_seconds)
    dist.init_process_group("cpu:gloo,cuda:nccl" if wants_gpu else "gloo", timeout=timeout)


def _crash(scratch: Path, error: Exception) -> int:
    log.exception("Training failed")
    return _fail(scratch, ExitCode.FAILED, f"{type(error).__name__}: {error}".splitlines()[0])


def _lost_peer(scratch: Path, error: Exception) -> int:
    log.warning("Lost another rank: %s", str(error).splitlines()[0])
    time.sleep(LOST_PEER_PATIENCE_SECONDS)
    return _fail(scratch, LOST_PEER_EXIT, "lost the connection to another rank")


def _fail(scratch: Path, code: int, sentence: str) -> int:
    (scratch / f"rank{os.environ['RANK']}.txt").write_text(sentence)
    return code


def _is_connection_error(error: RuntimeError) -> bool:
    words = (
        "Connection closed by peer",
        "Connection reset by peer",
        "Timed out waiting",
        "Broken pipe",
        "gloo",
    )
    return any(word.lower() in str(error).lower() for word in words)


def _die_with_parent() -> None:
    """If the agent is killed outright, so is this rank: nothing is left running."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
