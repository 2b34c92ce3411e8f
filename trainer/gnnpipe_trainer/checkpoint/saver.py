"""Writes checkpoints while training goes on.

A thread of every rank writes history from where it lies as soon as an epoch's forward is done (`begin`). At the end of
the epoch it gets copies of the rest (`finish`), or hears that the checkpoint is not wanted after all. The threads have
no lower priority: whoever holds the interpreter and is not let run keeps training waiting. They need no collectives:
each says in the job's key-value store that its part is written; rank 0 waits for all of them and gives the checkpoint
its name. Whatever goes wrong on the way costs that checkpoint, never the training.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from torch.distributed.distributed_c10d import Store

from gnnpipe_api.job import CheckpointSpec
from gnnpipe_trainer.checkpoint.folder import beside, drop_spare, folder_of, prune, publish
from gnnpipe_trainer.checkpoint.loan import Loan
from gnnpipe_trainer.checkpoint.packed import Packed
from gnnpipe_trainer.checkpoint.parts import Part
from gnnpipe_trainer.pipeline.topology import Topology

log = logging.getLogger("gnnpipe")

PATIENCE = timedelta(hours=1)  # of rank 0 with slow disks of others; ranks that are gone end it much sooner


@dataclass
class SaveCounts:
    """What became of the checkpoints of this run, as this rank knows it."""

    saved: int = 0
    failed: int = 0
    seconds: float = 0.0  # that the last one took to write


@dataclass(frozen=True)
class Rest:
    """What a checkpoint holds beside history, and what its manifest says."""

    packed: Packed
    content: dict[str, Any]


class Saver:
    def __init__(self, checkpoints: Path, spec: CheckpointSpec, topology: Topology, store: Store) -> None:
        self.checkpoints, self.spec, self.topology, self.store = checkpoints, spec, topology, store
        self.counts = SaveCounts()
        self._thread: threading.Thread | None = None
        self._history: Loan | None = None
        self._begun: int | None = None  # the epoch whose rest is still to come
        self._rest: SimpleQueue[Rest | None] = SimpleQueue()

    def is_due(self, epoch: int) -> bool:
        return (epoch + 1) % self.spec.every_epochs == 0

    @property
    def idle(self) -> bool:
        """Nothing is being written, and nothing was begun."""
        return self._begun is None and (self._thread is None or not self._thread.is_alive())

    def has_begun(self, epoch: int) -> bool:
        return self._begun == epoch

    def begin(self, epoch: int, history: Loan) -> None:
        """Start writing; nothing else is under way. History must stay as it is until `give_back`."""
        self.wait()
        self._begun, self._history = epoch, history
        self._thread = threading.Thread(
            target=self._write, args=(epoch, history), name="checkpoint", daemon=True
        )
        self._thread.start()

    def finish(self, rest: Packed, content: dict[str, Any]) -> None:
        """Go on with what was begun. The copies must stay as they are until the next `wait`."""
        assert self._begun is not None
        self._begun = None
        self._rest.put(Rest(rest, content))

    def give_back(self) -> None:
        """Training is about to write to history."""
        if self._history is not None:
            self._history.give_back()
            self._history = None

    def drop(self) -> None:
        """What was begun and not finished is not wanted after all."""
        if self._begun is not None:
            self._begun = None
            self._rest.put(None)

    def wait(self) -> None:
        """Until the checkpoint under way is written: whole, on rank 0. One that was only begun is dropped."""
        self.drop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """As `wait`; and nothing more will be written."""
        self.wait()
        if self.topology.rank == 0:  # whose wait was for all ranks
            drop_spare(self.checkpoints)

    def _write(self, epoch: int, history: Loan) -> None:
        start = time.perf_counter()
        folder = folder_of(self.checkpoints, epoch)
        part = Part(beside(folder), f"rank{self.topology.rank}")
        failure = _attempt(lambda: part.write(history.arrived(), history.moved))
        history.done()
        seconds = time.perf_counter() - start
        rest = self._rest.get()
        if rest is None:
            part.remove()
            return
        start = time.perf_counter()
        failure = failure or _attempt(lambda: part.write(rest.packed)) or _attempt(part.finish)
        try:
            self._tell(epoch, {"files": part.checksums, "error": failure})
            if self.topology.rank == 0:
                self._finish(epoch, folder, rest.content)
            elif failure:
                raise OSError(failure)
            self.counts.saved += 1
        except Exception as error:
            self._give_up(epoch, folder, error)
        self.counts.seconds = seconds + time.perf_counter() - start

    def _tell(self, epoch: int, done: dict[str, Any]) -> None:
        self.store.set(self._key(epoch, self.topology.rank), json.dumps(done))

    def _give_up(self, epoch: int, folder: Path, error: Exception) -> None:
        self.counts.failed += 1
        log.warning(
            "The checkpoint of epoch %d could not be written (%s); training goes on. Failed so far: %d",
            epoch,
            _reason(error),
            self.counts.failed,
        )
        if self.topology.rank == 0:
            shutil.rmtree(beside(folder), ignore_errors=True)

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


def _attempt(write: Callable[[], None]) -> str | None:
    """Why it failed, if it did."""
    try:
        write()
    except Exception as error:
        return _reason(error)
    return None


def _reason(error: Exception) -> str:
    """The error in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]
