"""Processes that are ended by the ids under which they were started, and by nothing else."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .errors import StartFailed

LOG_TAIL_LINES = 15
NO_PROXY = {"NO_PROXY": "*", "no_proxy": "*"}  # all parts of a cluster are on this machine
PORTS = Path(tempfile.gettempdir()) / f"gnnpipe-ports-{os.getuid()}"  # a locked file for each in use
_reserved: list[IO[str]] = []


@dataclass(frozen=True)
class Process:
    """A started process. Its start time tells it from a later one that got the same id."""

    name: str
    pid: int
    start_ticks: int
    log: Path

    @property
    def alive(self) -> bool:
        reap(self.pid)
        return start_ticks(self.pid) == self.start_ticks

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def stop(self, grace_seconds: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after the grace; returns when the process is gone."""
        if grace_seconds > 0:
            self.signal(signal.SIGTERM)
            if poll(lambda: not self.alive, grace_seconds):
                return
        self.signal(signal.SIGKILL)
        if not poll(lambda: not self.alive, 10):
            raise StartFailed(f"{self.name} (process {self.pid}) does not end, not even on SIGKILL")

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])


def start(
    name: str,
    command: Sequence[str | Path],
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    outlive: bool = False,
) -> Process:
    """Start `command` with its output in `folder/name.log`.

    Unless it shall `outlive` this process, the kernel kills it with its parent, so that a test run that is
    itself killed leaves nothing behind.
    """
    log = folder / f"{name}.log"
    setpriv = None if outlive else shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*guard, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **NO_PROXY, **(environment or {})},
            start_new_session=True,
        )
    child.returncode = 0  # `reap` waits for it, not subprocess: keeps its destructor from warning
    return Process(name, child.pid, start_ticks(child.pid) or 0, log)


def reap(pid: int) -> None:
    """Take a finished child off the process table; a no-op for processes that are not our children."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None where there is no such live process.

    One that was killed is dead when its last thread is: until then it holds its ports.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the command's name, in brackets, may itself hold blanks
    return None if fields[0] == "Z" and threads <= 1 else int(fields[19])


def poll(condition: Callable[[], bool], seconds: float, every: float = 0.05) -> bool:
    """True as soon as the condition holds, False when it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def await_ready(process: Process, ready: Callable[[], bool], seconds: float) -> None:
    """Wait until `ready`; a process that died or is late is an error with the tail of its log."""
    if poll(lambda: not process.alive or ready(), seconds) and process.alive:
        return
    what = f"was not ready within {seconds:.0f} s" if process.alive else "ended at once"
    raise StartFailed(f"{process.name} {what}; the end of {process.log}:\n{process.log_tail()}")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, at any address, and that nobody else is given while this process lives.

    They lie below the range from which the kernel serves outgoing connections, so that none is taken while
    its server is down.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(15_000, 30_000)  # tests may have seeded the usual one
        if reserve(port) and _is_free(port):
            found.append(port)
    return found


def reserve(port: int) -> bool:
    """Tests run side by side: between choosing a port and listening on it another process could choose it too."""
    PORTS.mkdir(exist_ok=True)
    lock = (PORTS / str(port)).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _reserved.append(lock)  # the kernel unlocks it when this process ends
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
