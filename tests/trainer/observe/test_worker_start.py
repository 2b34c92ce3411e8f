"""A pod that is asked to stop while it still starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from gnnpipe_api.contract import ExitCode

# In torch's place: a module whose import never ends, and says through a pipe that it began.
ENDLESS = """import os, time
os.write({pipe}, b"x")
time.sleep(600)
"""


def test_a_pod_that_still_imports_leaves_at_once_when_it_is_asked_to(tmp_path: Path) -> None:
    """In a container it is process 1, to whom the kernel hands only signals that it handles."""
    hears, tells = os.pipe()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(ENDLESS.format(pipe=tells))
    command = [Path(sys.executable).with_name("gnnpipe"), "worker"]
    pod = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, pass_fds=[tells])
    try:
        os.close(tells)
        assert os.read(hears, 1) == b"x"
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(timeout=60) == ExitCode.PREEMPTED
    finally:
        pod.kill()
        pod.wait()
        os.close(hears)
