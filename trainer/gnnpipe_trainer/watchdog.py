"""Notices a rank that hangs: a stopped process, a machine that is gone, a network that is cut.

Every rank has a thread that counts up a number in the job's store. Rank 0 watches all of them, all watch rank 0,
and what rank 0 finds it says in the store. So each beat costs a few words per rank, however many ranks there are.
The launcher hears its own ranks through a pipe: it is who notices a rank that has no others.
Waiting in a collective is no sign of life and no sign of death: only the beats count.

It begins before the ranks have met: torch waits without end for a store whose process has stopped, and does not say
which rank it is that has not come.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from gnnpipe_trainer.endings import BEAT, BEATS, HUNG_PEER_EXIT, LAST_BEAT, Loss, pid_file, sentence_file
from gnnpipe_trainer.pipeline.topology import Topology

log = logging.getLogger("gnnpipe")

VERDICT = "verdict"
DONE = b"done"
NOT_COME = b""  # in place of a beat
LEAST_LISTENING_SECONDS = 0.5


class Watchdog:
    """`connect` gives this thread's own connection to the job's store, and may wait for it."""

    def __init__(
        self, connect: Callable[[], Store], topology: Topology, timeout_seconds: float, scratch: Path
    ) -> None:
        self.topology, self.scratch = topology, scratch
        self._connect = connect
        self._store: Store | None = None
        self.interval = min(1.0, timeout_seconds / 20)
        self.patience = 0.8 * timeout_seconds  # the rest is for the word to get round
        self._watched = range(topology.world) if topology.rank == 0 else range(1)
        self._heard: dict[int, tuple[bytes, float]] = {}  # last beat of each rank, and when it changed
        self._answered = 0.0  # when the store last did
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._answered = time.monotonic()
        self._beating.start()
        threading.Thread(target=self._watch_store, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Say that this rank is done, so that nobody waits for another beat."""
        self._ended.set()
        self._beating.join(2 * self.interval)
        with suppress(dist.DistError):
            self.store.set(_key(self.topology.rank), DONE.decode())
        _tell_launcher(LAST_BEAT)

    @property
    def store(self) -> Store:
        if self._store is None:
            raise dist.DistNetworkError("the job's store has not answered yet")
        return self._store

    def verdict(self) -> Loss | None:
        """What another rank found out already: in the store, or left by a rank of this machine that is gone."""
        with suppress(dist.DistError):
            if self.store.check([VERDICT]):
                return Loss.of(self.store.get(VERDICT))
        return Loss.left_in(self.scratch)

    def silent_ranks(self) -> list[int]:
        """Who misses three beats; for a rank that has lost a connection and wants to say whose.

        The agent of this machine has time meanwhile to see a rank that died here, and to end this one.
        """
        found: list[int] = []
        seconds = max(LEAST_LISTENING_SECONDS, 3 * self.interval)

        def listen() -> None:
            try:
                before = self._beats(range(self.topology.world))
                time.sleep(seconds)
                after = self._beats(before.keys())
                found.extend(rank for rank, beat in before.items() if after.get(rank) == beat != DONE)
            except dist.DistError:
                found.append(0)  # the store is gone, and with it the machine of rank 0

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        listening.join(2 * seconds)  # the store may be what is lost
        return found

    def tell_everyone(self, loss: Loss) -> None:
        """All ranks leave with this sentence, also those that wait for something else than the lost rank."""
        with suppress(dist.DistError):
            self.store.set(VERDICT, loss.words())
        if self.topology.rank == 0:  # the store ends with this rank: let the others read it first
            self._let_others_read()

    def _beat(self) -> None:
        """The first beat comes at once: others wait for it."""
        count = 0
        while True:
            count += 1
            with suppress(dist.DistError):
                self._store = self._store or self._connect()
                self.store.set(_key(self.topology.rank), str(count))
                self._look()
                self._answered = time.monotonic()
            if self._ended.wait(self.interval):
                return

    def _watch_store(self) -> None:
        """A store that has stopped does not answer at all, so the other thread cannot be the one to notice."""
        _tell_launcher(BEAT)
        while not self._ended.wait(self.interval):
            _tell_launcher(BEAT)
            if time.monotonic() - self._answered > self.patience + self.interval:
                self._leave(Loss([0], f"{name_of(self.topology, 0)}, where all ranks meet, has not answered"))

    def _look(self) -> None:
        if self.store.check([VERDICT]):
            self._leave(Loss.of(self.store.get(VERDICT)))
        now = time.monotonic()
        beats = self._beats(self._watched)
        for rank in self._watched:
            beat = beats.get(rank, NOT_COME)
            last, since = self._heard.setdefault(rank, (NOT_COME, now))
            if beat != last or beat == DONE:
                self._heard[rank] = (beat, now)
            elif now - since > self.patience and rank != self.topology.rank:
                what = "has not joined the others" if beat == NOT_COME else "has not answered"
                self._condemn(rank, f"{what} for {now - since:.0f} s")

    def _beats(self, ranks: Iterable[int]) -> dict[int, bytes]:
        """The beats of those that have begun to beat."""
        begun = [rank for rank in ranks if self._has_come(rank)]
        return dict(zip(begun, self.store.multi_get([_key(rank) for rank in begun]), strict=True))

    def _has_come(self, rank: int) -> bool:
        known, _ = self._heard.get(rank, (NOT_COME, 0.0))
        return known != NOT_COME or self.store.check([_key(rank)])

    def _condemn(self, rank: int, what: str) -> None:
        loss = Loss([rank], f"{name_of(self.topology, rank)} {what}")
        self.store.set(VERDICT, loss.words())
        loss.leave_in(self.scratch)  # before its end is seen: the end is not the cause
        pid = pid_file(self.scratch, rank)
        if pid.exists():  # on this machine: it must not wake up and write into the next attempt
            with suppress(OSError, ValueError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
        self._leave(loss)

    def _leave(self, loss: Loss) -> None:
        """End this process from its watching thread: the main one may be waiting for the rank that hangs."""
        if self._ended.is_set():
            return
        log.error(loss.sentence)
        loss.leave_in(self.scratch)
        sentence_file(self.scratch, self.topology.rank).write_text(loss.sentence)
        self._let_others_read()  # before this rank's end is noticed
        os._exit(HUNG_PEER_EXIT)

    def _let_others_read(self) -> None:
        """The verdict; a rank looks for it at each of its beats."""
        time.sleep(max(1.0, 2 * self.interval))


def _tell_launcher(beat: bytes) -> None:
    if pipe := os.environ.get(BEATS):
        with suppress(OSError):  # it is gone, or has stopped and does not listen
            os.write(int(pipe), beat)


def name_of(topology: Topology, rank: int) -> str:
    return f"rank {rank} (stage {rank // topology.ways})"


def _key(rank: int) -> str:
    return f"alive/{rank}"
