"""A rank that hangs is noticed and named by the others, which leave."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
from fault_campaign import Attempt, lines_of, manifest
from handicapped_ranks import POINTS, be_rank_that_stops, is_stopped, until

from gnnpipe_trainer.endings import HUNG_PEER_EXIT, LOST_PEER_EXIT

STALL_SECONDS = 10  # ranks that are well start within it, on a slow machine too
PATIENCE_SECONDS = 60  # a guard for a busy machine; without a watchdog the ranks would stay for good


def assert_left_naming(attempt: Attempt, rank: int) -> None:
    """All other ranks have left, and each said whom it waited for."""
    others = [other for other in range(len(attempt.processes)) if other != rank]
    for other in others:
        attempt.processes[other].join(PATIENCE_SECONDS)
    assert {attempt.codes[other] for other in others} <= {HUNG_PEER_EXIT, LOST_PEER_EXIT}, attempt.codes
    for other in others:
        assert f"rank {rank} (stage {rank})" in attempt.sentence(other)


Stopped = dict[tuple[str, int], Attempt]


@pytest.fixture(scope="module")
def stopped(
    forked: ForkServerContext, peace: tuple[dict[str, Any], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stopped]:
    """Jobs of two ranks, one of which has stopped at each point of its life: all wait at the same time."""
    _, reference = peace
    attempts: Stopped = {}
    for point in POINTS:
        for rank in range(2):
            folder = tmp_path_factory.mktemp(f"{point}{rank}")
            if point == "resuming":
                shutil.copytree(reference, folder / "out")
            impatient = manifest(epochs=2, stallTimeoutSeconds=STALL_SECONDS)
            target = partial(be_rank_that_stops, rank, point)
            attempt = Attempt(impatient, folder / "out", folder / "scratch", target).start(forked)
            attempts[point, rank] = attempt
            until(partial(is_stopped, attempt, rank), attempt)  # one start at a time: a busy machine is slow
    yield attempts
    for attempt in attempts.values():
        attempt.end()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", POINTS)
def test_a_rank_that_stops_at_any_point_of_its_life_is_named_by_the_other(
    stopped: Stopped, point: str, rank: int
) -> None:
    assert_left_naming(stopped[point, rank], rank)


def started(start_ranks: Any, tmp_path: Path, stall_seconds: int) -> Attempt:
    attempt: Attempt = start_ranks(manifest(stages=3, epochs=5000, stallTimeoutSeconds=stall_seconds))
    until(lambda: len(lines_of(tmp_path / "out")) >= 3, attempt)
    return attempt


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stopped_rank_is_named_by_the_others_within_the_stall_timeout(
    start_ranks: Any, tmp_path: Path, rank: int
) -> None:
    attempt = started(start_ranks, tmp_path, STALL_SECONDS)
    attempt.hit(rank, signal.SIGSTOP)
    assert_left_naming(attempt, rank)


def test_a_killed_rank_is_named_by_the_others_also_where_no_launcher_sees_it(
    start_ranks: Any, tmp_path: Path
) -> None:
    attempt = started(start_ranks, tmp_path, stall_seconds=10)  # it is the lost connection that tells
    attempt.hit(1, signal.SIGKILL)
    codes = attempt.wait(PATIENCE_SECONDS)
    assert codes[1] == -signal.SIGKILL
    assert {codes[0], codes[2]} <= {HUNG_PEER_EXIT, LOST_PEER_EXIT}
    for other in (0, 2):
        assert "lost the connection to rank 1 (stage 1)" in attempt.sentence(other)
