"""What was killed is gone only when nothing of it is left, ports least of all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.processes import free_ports, poll, reserve, start

LEAVE_A_THREAD = """
import ctypes, socket, sys, threading, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=lambda: time.sleep(600)).start()
print("up", flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit of the main thread alone, as in the middle of a process' end
"""


def test_a_process_whose_first_thread_has_ended_is_alive_and_not_after_its_last(tmp_path: Path) -> None:
    process = start("half", [sys.executable, "-c", LEAVE_A_THREAD, str(free_ports(1)[0])], tmp_path)
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        assert poll(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 30), process.log_tail()
        assert process.alive
    finally:
        process.signal(signal.SIGKILL)
    assert poll(lambda: not process.alive, 10)


def test_a_port_that_was_given_to_one_process_is_given_to_no_other() -> None:
    (port,) = free_ports(1)
    ask = f"from harness.processes import reserve; print(reserve({port}))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == "False"
    assert not reserve(port)  # nor twice to the same
