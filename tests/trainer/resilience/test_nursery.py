"""Ranks as forks: how they end is known exactly, one that hangs is noticed though it has no others, none stays."""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_campaign import manifest

from gnnpipe_api.contract import ExitCode
from gnnpipe_trainer.endings import BEAT, BEATS, LAST_BEAT, LOST_PEER_EXIT, Loss
from gnnpipe_trainer.launch import Place, _attend, _explain
from gnnpipe_trainer.nursery import LISTEN_SECONDS, Nursery

PATIENCE_SECONDS = 60  # a guard for a busy machine


def ends(arguments: Sequence[str]) -> int:
    """A rank that ends as it is told to: with a code, by a signal, or in an error."""
    (how,) = arguments
    if how == "raise":
        raise RuntimeError("what nobody expects")
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    return int(how)


def beats_and_stops(arguments: Sequence[str]) -> int:
    """A rank that beats; "stop": it hangs then, "last": it says that it is the last one and takes its time."""
    (how,) = arguments
    pipe = int(os.environ[BEATS])
    os.write(pipe, BEAT)
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "last":
        os.write(pipe, LAST_BEAT)
        time.sleep(1.5)
        return 0
    while True:
        time.sleep(0.05)
        os.write(pipe, BEAT)


def tells_environment(arguments: Sequence[str]) -> int:
    Path(arguments[0]).write_text(json.dumps(dict(os.environ)))
    return 0


def until_all_ended(nursery: Nursery) -> list[int | None]:
    limit = time.monotonic() + PATIENCE_SECONDS
    while nursery.living and time.monotonic() < limit:
        nursery.listen(LISTEN_SECONDS)
    return [rank.exitcode for rank in nursery.ranks]


def attended(how: Sequence[str], place: Place, scratch: Path) -> dict[int, int]:
    """Exit codes of ranks that beat or stop, in a job that gives up after a second."""
    job = scratch / "manifest.json"
    job.write_text(json.dumps(manifest(stages=len(how), epochs=1, stallTimeoutSeconds=1)))
    with Nursery(beats_and_stops, len(how)) as nursery:
        for rank, each in zip(nursery.ranks, how, strict=True):
            rank.order({}, [each])
        return _attend(nursery, place, job, scratch)


@pytest.mark.parametrize(
    ("how", "code"),
    [("0", 0), ("2", 2), ("70", 70), ("SIGKILL", -9), ("SIGUSR1", -10), ("SIGTERM", -15), ("raise", 1)],
)
def test_the_end_of_every_rank_is_known_as_it_was(how: str, code: int) -> None:
    with Nursery(ends, 2) as nursery:
        nursery.ranks[0].order({}, ["0"])
        nursery.ranks[1].order({}, [how])
        assert until_all_ended(nursery) == [0, code]


def test_a_rank_has_the_environment_that_its_launcher_has_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Nursery(tells_environment, 1) as nursery:
        monkeypatch.setenv("SET_LATER", "by the launcher")
        nursery.ranks[0].order({"RANK": "7"}, [str(tmp_path / "told")])
        assert until_all_ended(nursery) == [0]
    told = json.loads((tmp_path / "told").read_text())
    assert (told["SET_LATER"], told["RANK"]) == ("by the launcher", "7")


def test_a_rank_does_at_its_end_what_it_wanted_done_and_not_what_its_launcher_wants(tmp_path: Path) -> None:
    def main(arguments: Sequence[str]) -> int:
        atexit.register((tmp_path / "of the rank").touch)
        return 0

    wish = atexit.register((tmp_path / "of the launcher").touch)
    try:
        with Nursery(main, 1) as nursery:
            nursery.ranks[0].order({}, [])
            assert until_all_ended(nursery) == [0]
    finally:
        atexit.unregister(wish)
    assert [path.name for path in tmp_path.iterdir()] == ["of the rank"]


def test_ranks_that_were_never_needed_and_ranks_that_hang_do_not_outlive_their_launcher() -> None:
    with Nursery(beats_and_stops, 3) as nursery:
        nursery.ranks[0].order({}, ["stop"])
        nursery.ranks[1].order({}, ["beat"])
    assert not nursery.living
    for rank in nursery.ranks:
        with pytest.raises(ProcessLookupError):
            os.kill(rank.pid, 0)


def test_a_rank_that_waits_for_orders_leaves_when_its_launcher_is_killed_outright() -> None:
    hears, tells = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        try:
            Nursery(ends, 2)  # both hold `tells` open for as long as they live
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(tells)
    assert os.read(hears, 1) == b""
    os.close(hears)
    assert os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]) == -signal.SIGKILL


def test_a_rank_that_hangs_alone_is_named_and_ended_by_its_launcher(tmp_path: Path) -> None:
    place = Place(ranks_here=1)
    codes = attended(["stop"], place, tmp_path)
    assert codes == {0: -signal.SIGKILL}
    outcome = _explain(codes, tmp_path, place)
    assert outcome.code == ExitCode.FAILED
    assert outcome.sentence == "rank 0 (stage 0) has not answered for 1 s"


def test_the_hung_one_among_ranks_that_beat_is_named(tmp_path: Path) -> None:
    codes = attended(["beat", "stop"], Place(ranks_here=2), tmp_path)
    assert codes == {0: -signal.SIGTERM, 1: -signal.SIGKILL}
    assert Loss.left_in(tmp_path) == Loss([1], "rank 1 (stage 1) has not answered for 1 s")


def test_after_its_last_beat_a_rank_may_take_its_time(tmp_path: Path) -> None:
    assert attended(["last"], Place(ranks_here=1), tmp_path) == {0: 0}


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        ({0: LOST_PEER_EXIT, 1: -9}, "rank 1 of 2 was killed (SIGKILL); if nobody did, the machine"),
        ({0: LOST_PEER_EXIT, 1: 1}, "rank 1 of 2 ended with exit code 1"),
        ({0: 0, 1: 3}, "rank 1 of 2 ended with exit code 3"),
        ({0: -15, 1: -11}, "rank 1 of 2 was ended by SIGSEGV"),
    ],
    ids=["killed", "failed", "the only one that did not end well", "crashed"],
)
def test_whoever_ended_first_the_cause_is_told(codes: dict[int, int], sentence: str, tmp_path: Path) -> None:
    assert _explain(codes, tmp_path, Place(ranks_here=2)).sentence.startswith(sentence)
