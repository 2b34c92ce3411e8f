"""Where a run begins: at the newest whole checkpoint of its folder, or at the start."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.checkpoint.folder import Checkpoint, Damaged, found, newest_whole, unfinished
from gnnpipe_trainer.checkpoint.identity import BadCheckpoint, manifest_hash, refuse_other_job, same_cut
from gnnpipe_trainer.checkpoint.parts import load_tensors
from gnnpipe_trainer.checkpoint.state import TrainingState
from gnnpipe_trainer.endings import STARTED
from gnnpipe_trainer.report import Accuracy, Reporter, write_json
from gnnpipe_trainer.weights import Best

log = logging.getLogger("gnnpipe")


@dataclass(frozen=True)
class Identity:
    """What a checkpoint says about the job it belongs to."""

    job: GNNPipeJob
    plan: Plan
    graph: str  # fingerprint of the graph, however it is cut
    chunked_graph: str  # hash of the graph as it is cut

    def content(self, epoch: int, best: Best, reporter: Reporter) -> dict[str, Any]:
        """manifest.json of a checkpoint taken after `epoch`."""
        accuracy = best.accuracy
        return {
            "epoch": epoch,
            "seconds": round(reporter.seconds, 3),
            "line": reporter.last_line,
            "best": {
                "epoch": best.epoch,
                "accuracy": None if accuracy is None else [accuracy.train, accuracy.val, accuracy.test],
            },
            "job": self.job.manifest(),
            "manifestHash": manifest_hash(self.job),
            "plan": self.plan.as_dict(),
            "graph": self.graph,
            "chunkedGraph": self.chunked_graph,
        }


@dataclass(frozen=True)
class Start:
    """Agreed on by all ranks before the first epoch."""

    epoch: int = 0
    checkpoint: Checkpoint | None = None
    history_fits: bool = False
    warnings: list[str] = field(default_factory=list)

    def apply(self, state: TrainingState, reporter: Reporter) -> None:
        """Bring this rank to where the run begins."""
        if self.checkpoint is None:
            reporter.begin()
            state.begin()
            return
        content = self.checkpoint.content
        accuracy = content["best"]["accuracy"]
        state.best.epoch = content["best"]["epoch"]
        state.best.accuracy = None if accuracy is None else Accuracy(*accuracy)
        try:
            state.restore(partial(load_tensors, self.checkpoint), self.epoch, self.history_fits)
        except Damaged as damage:  # with the right checksums: not by accident
            raise BadCheckpoint(
                f"{self.checkpoint.folder} was changed by hand ({damage}). "
                "Remove it to go back to the one before, or start over with --fresh"
            ) from damage
        reporter.begin(content["seconds"], content["line"])

    def announce(self, scratch: Path) -> None:
        """Tell whoever started this run where it begins."""
        name = None if self.checkpoint is None else self.checkpoint.folder.name
        write_json(scratch / STARTED, {"epoch": self.epoch, "checkpoint": name, "warnings": self.warnings})


def agree_on_start(identity: Identity, checkpoints: Path, control: dist.ProcessGroup) -> Start:
    """Rank 0 looks and tells the others. Raises BadCheckpoint on every rank alike."""
    said: list[Start | BadCheckpoint | None] = [None]
    if dist.get_rank() == 0:
        try:
            said[0] = find_start(identity, checkpoints)
        except BadCheckpoint as refused:
            said[0] = refused
    dist.broadcast_object_list(said, 0, group=control)
    if isinstance(said[0], BadCheckpoint):
        raise said[0]
    assert said[0] is not None
    return said[0]


def find_start(identity: Identity, checkpoints: Path) -> Start:
    """Look for the newest whole checkpoint and clear away what a killed run left half-written."""
    warnings: list[str] = []

    def warn(sentence: str) -> None:
        log.warning(sentence)
        warnings.append(sentence)

    for left in unfinished(checkpoints):
        warn(f"{left} was not finished when the run before ended; it is not used")
        shutil.rmtree(left, ignore_errors=True)
    checkpoint = newest_whole(checkpoints, warn)
    if checkpoint is None:
        if found(checkpoints):
            warn("No checkpoint is whole; training starts from the beginning")
        return Start(warnings=warnings)
    refuse_other_job(checkpoint.content, identity.job, identity.graph, str(checkpoints.parent))
    fits = same_cut(checkpoint.content, identity.job, identity.plan, identity.chunked_graph)
    log.info("Going on after epoch %d, from %s", checkpoint.epoch, checkpoint.folder)
    return Start(checkpoint.epoch + 1, checkpoint, fits, warnings)
