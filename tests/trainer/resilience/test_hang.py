"""A rank that hangs is noticed and named by the others, which leave."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from fault_campaign import Attempt, lines_of, manifest

from gnnpipe_trainer.endings import HUNG_PEER_EXIT, LOST_PEER_EXIT

STALL_SECONDS = 4
PATIENCE_SECONDS = 30  # a guard for a busy machine; without a watchdog the ranks would stay for good


def started(start_ranks: Any, tmp_path: Path, stall_seconds: int) -> Attempt:
    attempt: Attempt = start_ranks(manifest(stages=3, epochs=5000, stallTimeoutSeconds=stall_seconds))
    limit = time.monotonic() + 60
    while not (tmp_path / "out" / "epochs.jsonl").exists() or len(lines_of(tmp_path / "out")) < 3:
        assert time.monotonic() < limit, attempt.codes
        time.sleep(0.02)
    return attempt


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stopped_rank_is_named_by_the_others_within_the_stall_timeout(
    start_ranks: Any, tmp_path: Path, rank: int
) -> None:
    attempt = started(start_ranks, tmp_path, STALL_SECONDS)
    attempt.hit(rank, signal.SIGSTOP)
    since = time.monotonic()
    others = [other for other in range(3) if other != rank]
    while any(attempt.codes[other] is None for other in others):
        assert time.monotonic() - since < PATIENCE_SECONDS
        time.sleep(0.02)
    assert {attempt.codes[other] for other in others} <= {HUNG_PEER_EXIT, LOST_PEER_EXIT}
    for other in others:
        assert f"rank {rank} (stage {rank})" in attempt.sentence(other)


def test_a_killed_rank_is_named_by_the_others_also_where_no_launcher_sees_it(
    start_ranks: Any, tmp_path: Path
) -> None:
    attempt = started(start_ranks, tmp_path, stall_seconds=60)  # it is the lost connection that tells
    attempt.hit(1, signal.SIGKILL)
    codes = attempt.wait(PATIENCE_SECONDS)
    assert codes[1] == -signal.SIGKILL
    assert {codes[0], codes[2]} <= {HUNG_PEER_EXIT, LOST_PEER_EXIT}
    for other in (0, 2):
        assert "lost the connection to rank 1 (stage 1)" in attempt.sentence(other)
