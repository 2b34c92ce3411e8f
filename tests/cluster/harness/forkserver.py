"""Python programs that start at once: what they import is imported once, by a process of which each is a fork.

Importing takes the operator longer than starting, and tests that kill it after each of its writes start it often.
Everything else is as with `processes.start`: a process of its own, ended by its id, that dies with its parent.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .processes import NO_PROXY, Process, start_ticks

PR_SET_PDEATHSIG = 1


class ForkServer:
    """Runs `main(arguments)` of a module, as often as asked."""

    def __init__(self, module: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **NO_PROXY, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def start(
        self, name: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start the program with its output in `folder/name.log`."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        log = folder / f"{name}.log"
        order = {"arguments": list(arguments), "log": str(log), "environment": dict(environment)}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        return Process(name, pid, start_ticks(pid) or 0, log)

    def stop(self) -> None:
        """Ends the server; programs that still run die with it."""
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(timeout=10)


def serve(module: str) -> None:
    """Forks for each line on stdin, answers with the child's id, and ends with the input."""
    main = importlib.import_module(module).main
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes ended children off the process table
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(run(main, json.loads(line)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def run(main: Any, order: dict[str, Any]) -> int:
    """In the child: become the program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update({**order["environment"], **NO_PROXY})
    try:
        main(order["arguments"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
