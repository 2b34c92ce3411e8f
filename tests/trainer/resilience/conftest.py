from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from fault_campaign import Attempt, forking, manifest
from made_once import made_once

StartRanks = Callable[..., Attempt]


@pytest.fixture(scope="session")
def forked() -> ForkServerContext:
    """Ranks are forked from one process that has imported the trainer: an attempt starts at once."""
    return forking()


@pytest.fixture
def start_ranks(
    forked: ForkServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartRanks]:
    """Starts a job's ranks in tmp_path / out; whatever still runs at the end of the test is killed."""
    numbers, attempts = count(), []

    def start(job: dict[str, Any], out: str = "out") -> Attempt:
        attempt = Attempt(job, tmp_path / out, tmp_path / f"scratch{next(numbers)}").start(forked)
        attempts.append(attempt)
        return attempt

    yield start
    for attempt in attempts:
        attempt.end()


@pytest.fixture(scope="session")
def peace(forked: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A job and the folder of its run that nobody interrupted."""
    job = manifest(epochs=40)

    def train(folder: Path) -> None:
        attempt = Attempt(job, folder / "out", folder / "scratch").start(forked)
        assert attempt.wait() == [0, 0], (folder / "scratch" / "log.txt").read_text()

    return job, made_once(tmp_path_factory, "peace", train) / "out"
