"""Writes checkpoints while training goes on.

At the end of an epoch every rank copies its tensors and hands them to a thread of its own. They have no lower
priority: whoever holds the interpreter and is not let run keeps training waiting. The threads need no collectives:
each writes its part, then says so in the job's key-value store; rank 0 waits for all of them and gives the checkpoint
its name. Whatever goes wrong on the way costs that checkpoint, never the training.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.distributed_c10d import Store

from gnnpipe_api.job import CheckpointSpec
from gnnpipe_trainer.checkpoint.folder import beside, folder_of, prune, publish
from gnnpipe_trainer.checkpoint.packed import Packed
from gnnpipe_trainer.checkpoint.parts import write_part
from gnnpipe_trainer.pipeline.topology import Topology

log = logging.getLogger("gnnpipe")

PATIENCE = timedelta(hours=1)  # of rank 0 with slow disks of others; ranks that are gone end it much sooner


@dataclass
class SaveCounts:
    """What became of the checkpoints of this run, as this rank knows it."""

    saved: int = 0
    failed: int = 0
    seconds: float = 0.0  # of the last one, from the copy to its name


class Saver:
    def __init__(self, checkpoints: Path, spec: CheckpointSpec, topology: Topology, store: Store) -> None:
        self.checkpoints, self.spec, self.topology, self.store = checkpoints, spec, topology, store
        self.counts = SaveCounts()
        self._thread: threading.Thread | None = None

    def is_due(self, epoch: int) -> bool:
        return (epoch + 1) % self.spec.every_epochs == 0

    def save(self, epoch: int, packed: Packed, content: dict[str, Any]) -> None:
        """Start writing. The copies must stay as they are until the next `wait`."""
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(epoch, packed, content), name="checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Until the checkpoint under way is written: whole, on rank 0."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, epoch: int, packed: Packed, content: dict[str, Any]) -> None:
        start = time.perf_counter()
        folder = folder_of(self.checkpoints, epoch)
        done: dict[str, Any] = {"files": {}, "error": None}
        try:
            done["files"] = write_part(beside(folder), f"rank{self.topology.rank}", packed)
        except (Exception, CheckpointException) as error:  # torch's is no Exception
            done["error"] = _reason(error)
        try:
            self.store.set(self._key(epoch, self.topology.rank), json.dumps(done))
            if self.topology.rank == 0:
                self._finish(epoch, folder, content)
            elif done["error"]:
                raise OSError(done["error"])
            self.counts.saved += 1
        except Exception as error:
            self.counts.failed += 1
            log.warning(
                "The checkpoint of epoch %d could not be written (%s); training goes on. Failed so far: %d",
                epoch,
                _reason(error),
                self.counts.failed,
            )
            if self.topology.rank == 0:
                shutil.rmtree(beside(folder), ignore_errors=True)
        self.counts.seconds = time.perf_counter() - start

    def _finish(self, epoch: int, folder: Path, content: dict[str, Any]) -> None:
        """Rank 0: once every rank has written its part, make the checkpoint valid and drop old ones."""
        keys = [self._key(epoch, rank) for rank in range(self.topology.world)]
        self.store.wait(keys, PATIENCE)
        parts = [json.loads(self.store.get(key)) for key in keys]
        for key in keys:
            self.store.delete_key(key)
        errors = [f"rank {rank}: {part['error']}" for rank, part in enumerate(parts) if part["error"]]
        if errors:
            raise OSError("; ".join(errors))
        checksums = {name: checksum for part in parts for name, checksum in part["files"].items()}
        publish(folder, content, checksums)
        prune(self.checkpoints, self.spec.keep, epoch)

    def _key(self, epoch: int, rank: int) -> str:
        return f"checkpoint/{epoch}/{rank}"


def _reason(error: BaseException) -> str:
    """The error in a few words; torch.distributed.checkpoint wraps the real one."""
    wrapped = getattr(error, "failures", None)
    if isinstance(wrapped, dict) and wrapped:
        error = next(iter(wrapped.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]
