"""Ranks as forks of a process that has imported what they need: for a small job the imports were most of the work.

They are forked before that process has threads or has touched a GPU, neither of which survives a fork, and wait for
their orders: where all ranks meet is known only later.
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from gnnpipe_trainer.endings import BEATS, LAST_BEAT, PARENT

log = logging.getLogger("gnnpipe")

RankMain = Callable[[Sequence[str]], int]

CRASHED = 1  # exit code of a rank whose main function raised what it does not know
LISTEN_SECONDS = 0.1
KILLED_SECONDS = 30  # one that waits for a wedged device in the kernel cannot even be killed
ENDING_SECONDS = 0.005  # a rank that ends closes its pipe a little before
RESET_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class RankProcess:
    """One forked rank, seen from the process that forked it."""

    def __init__(self, main: RankMain, siblings: Iterable[RankProcess]) -> None:
        orders, self._orders = os.pipe()
        self.beats, beats = os.pipe()
        os.set_blocking(self.beats, False)
        os.set_blocking(beats, False)  # a launcher that has stopped must not stop its ranks
        here = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            for end in (self._orders, self.beats, *(end for other in siblings for end in other._ends)):
                os.close(end)
            _live(main, orders, beats, here)
        os.close(orders)
        os.close(beats)
        self.exitcode: int | None = None  # negative: the signal that ended it
        self.silent_seconds = 0.0  # since it last beat; only while somebody listens
        self._done = False

    @property
    def _ends(self) -> tuple[int, int]:
        return self._orders, self.beats

    def order(self, environment: Mapping[str, str], arguments: Sequence[str]) -> None:
        """Be a rank, with these beside what this process has in its environment by now."""
        order = {"environment": {**os.environ, **environment}, "arguments": list(arguments)}
        with suppress(BrokenPipeError), os.fdopen(os.dup(self._orders), "w") as pipe:
            pipe.write(json.dumps(order) + "\n")

    def listen(self, seconds: float) -> None:
        """What came through its pipe in the last `seconds`; also notices its end."""
        self.silent_seconds += seconds
        ended = False
        with suppress(BlockingIOError):
            while heard := os.read(self.beats, 4096):
                self.silent_seconds = 0.0
                self._done = self._done or LAST_BEAT in heard
            ended = True  # its end of the pipe is closed
        if self.exitcode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exitcode = os.waitstatus_to_exitcode(status)
            elif ended:
                time.sleep(ENDING_SECONDS)
        if self._done or self.exitcode is not None:
            self.silent_seconds = 0.0

    def send(self, number: signal.Signals) -> None:
        if self.exitcode is None:  # until it was waited for, nobody else has its id
            os.kill(self.pid, number)

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


class Nursery:
    """All ranks of this machine. Use as a context: none outlives it."""

    def __init__(self, main: RankMain, count: int) -> None:
        gc.collect()
        gc.freeze()  # else each fork's collector would copy the pages of all that was imported
        sys.stdout.flush()
        sys.stderr.flush()
        self.ranks: list[RankProcess] = []
        for _ in range(count):
            self.ranks.append(RankProcess(main, self.ranks))

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(0.0)
        for rank in self.ranks:
            rank.close()

    @property
    def living(self) -> list[RankProcess]:
        return [rank for rank in self.ranks if rank.exitcode is None]

    def listen(self, seconds: float) -> None:
        """For so long at most; shorter when a rank has beaten or ended.

        Only time in which this process was awake counts as silence: where all were stopped nobody is to blame.
        """
        start = time.monotonic()
        if living := self.living:
            select.select([rank.beats for rank in living], [], [], seconds)
        taken = min(time.monotonic() - start, seconds)
        for rank in living:
            rank.listen(taken)

    def end(self, patience_seconds: float) -> None:
        """By SIGTERM, and by SIGKILL those that are still there after a while."""
        self.listen(0.0)  # the end of one may be news to nobody but this process: it keeps its exit code
        limit = time.monotonic() + patience_seconds
        if patience_seconds:
            for rank in self.living:
                rank.send(signal.SIGTERM)
        while self.living and (left := limit - time.monotonic()) > 0:
            self.listen(min(left, LISTEN_SECONDS))
        for rank in self.living:
            rank.send(signal.SIGKILL)
        limit = time.monotonic() + KILLED_SECONDS
        while self.living and time.monotonic() < limit:
            self.listen(LISTEN_SECONDS)
        for rank in self.living:
            log.error("Process %d does not end, though it was killed: its device does not answer", rank.pid)
            rank.exitcode = -signal.SIGKILL


def _live(main: RankMain, orders: int, beats: int, parent: int) -> None:
    """In the fork: wait for orders, be a rank, and leave without going back into the code that forked it."""
    code = CRASHED
    try:
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        atexit._clear()  # what the parent wants done at its end
        with os.fdopen(orders) as pipe:
            words = pipe.readline()
        if not words:
            os._exit(0)  # the parent has no need of ranks, or is gone
        order = json.loads(words)
        os.environ.update({**order["environment"], PARENT: str(parent), BEATS: str(beats)})
        code = main(order["arguments"])
        if code == 0:  # else threads may wait for ranks that are gone: nobody waits for them
            atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
