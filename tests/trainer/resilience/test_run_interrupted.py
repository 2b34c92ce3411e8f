"""`gnnpipe run`, interrupted in every way a person or a machine can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fault_campaign import lines_of

from gnnpipe_trainer.checkpoint.folder import found

START_SECONDS = 200  # a busy machine imports torch slowly


class Run:
    """One `gnnpipe run` in a folder of the test's, and the processes under it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.out = folder / "out"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "gnnpipe_trainer.cli",
            "run",
            folder / "job.yaml",
            "--out",
            self.out,
            *options,
        ]
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        )

    def ranks(self) -> dict[int, int]:
        """Process id of each rank that has said it."""
        files = [path for path in self.out.glob(".run-*/rank*.pid") if path.read_text()]
        return {int(path.stem.removeprefix("rank")): int(path.read_text()) for path in files}

    def until_it_saves(self) -> dict[int, int]:
        """Wait for epochs and a checkpoint of this very run; returns its ranks."""
        wait_for(lambda: any(self.out.glob(".run-*/started.json")), self.process)
        newest = found(self.out / "checkpoints")[:1]
        wait_for(lambda: found(self.out / "checkpoints")[:1] != newest, self.process)
        return self.ranks()

    def said(self) -> tuple[int, str]:
        """Its exit code and everything it said, once it has ended."""
        out, err = self.process.communicate(timeout=START_SECONDS)
        return self.process.returncode, out + err


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    limit = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < limit
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def lives(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has asked about yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.timeout(900)
def test_killed_interrupted_and_orphaned_a_run_goes_on_and_ends_as_if_nothing_had_been(
    tmp_path: Path, peace: tuple[dict[str, Any], Path]
) -> None:
    job, reference = peace
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    # A rank is killed: the run ends at once and says whose end it was.
    run = Run(tmp_path)
    ranks = run.until_it_saves()
    os.kill(ranks[1], signal.SIGKILL)
    code, said = run.said()
    assert code == 1
    assert "rank 1 of 2 was killed (SIGKILL)" in said
    assert not any(map(lives, ranks.values()))

    # Somebody presses Ctrl-C: a checkpoint is written.
    run = Run(tmp_path)
    ranks = run.until_it_saves()
    run.process.send_signal(signal.SIGINT)
    code, said = run.said()
    assert code == 75
    assert "Going on after epoch" in said
    assert "run it again" in said
    assert not any(map(lives, ranks.values()))

    # The command itself is killed outright: its ranks do not stay behind, nor does any folder.
    run = Run(tmp_path)
    ranks = run.until_it_saves()
    run.process.kill()
    run.process.communicate()
    wait_for(lambda: not any(map(lives, ranks.values())) and not any(run.out.glob(".run-*")))

    # Left alone it finishes, and says so when it is asked again.
    code, said = Run(tmp_path).said()
    assert code == 0, said
    assert (tmp_path / "out" / "model.pt").read_bytes() == (reference / "model.pt").read_bytes()
    assert lines_of(tmp_path / "out") == lines_of(reference)
    code, said = Run(tmp_path).said()
    assert code == 0
    assert f"finished after {len(lines_of(reference))} epochs" in said
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not any((tmp_path / "out").glob(".run-*"))
