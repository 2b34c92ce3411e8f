"""`gnnpipe bench modes` from end to end, on a graph of no size; what it says about time means nothing here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import load_job, parse_job
from gnnpipe_trainer.bench import bare, by_turns, one_rank, plain
from gnnpipe_trainer.bench.compare import Comparison, time_ratio
from gnnpipe_trainer.bench.measure import RunFailed, measure
from gnnpipe_trainer.bench.modes import (
    CSR,
    EDGE_INDEX,
    ONE_RANK,
    SENT,
    SKIPPED,
    SLOW_EPOCHS,
    TWO_AT_ONCE,
    Mode,
    modes_for,
)
from gnnpipe_trainer.cli import main

EPOCHS = 3


@pytest.mark.timeout(900)  # a busy machine starts nine processes slowly
def test_modes_are_measured_side_by_side_and_kept(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    names = [CSR, ONE_RANK, "pipeline, 2 stages, W not split", "graph, 2 ways"]
    only = [word for name in names for word in ("--only", name)]
    command = ["bench", "modes", str(manifest), "--epochs", str(EPOCHS), "--out", str(out), *only]
    assert main(command) == ExitCode.DONE
    results = json.loads((out / "modes.json").read_text())
    rows = {row["name"]: row for row in results["modes"]}
    assert results["failures"] == {}
    assert results["graph"]["vertices"] == 400
    assert results["command"].startswith("gnnpipe bench modes ")
    assert list(rows) == names
    for row in rows.values():
        assert row["seconds"]["median"] > 0
        assert [len(seconds) for seconds in row["seconds"]["rounds"]] == [EPOCHS]
        assert all(peak > 1e6 for peak in row["peakMemoryBytes"])
    for row in results["modes"][-2:]:
        assert row["bytesPerEpoch"] == row["formulaBytes"]
        assert 0 <= row["waiting"] < 1
    losses = [rows[name]["lastLoss"] for name in (CSR, ONE_RANK, "graph, 2 ways")]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-4)  # they did the same work
    assert (out / "modes.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert all(name in shown for name in rows)


def test_all_modes_of_two_ranks_in_the_order_of_the_table(job: GNNPipeJob) -> None:
    assert [mode.title for mode in modes_for(job, ranks=2, rates=["1gbit"], with_dgl=False)] == [
        "torch-geometric, edge_index",
        "torch-geometric, CSR, cached",
        "bare loop of the same kernels",
        "engine by turns with the bare loop",
        "1 rank, 1 chunk",
        "two separate jobs of one rank, at once",
        "1 rank, 16 chunks",
        "1 rank, 16 chunks in turn",
        "pipeline, 2 stages",
        "pipeline, 2 stages, W not split",
        "pipeline, 2 stages, zeros skipped",
        "graph, 2 ways",
        "pipeline, 2 stages, 1gbit",
        "pipeline, 2 stages, every number sent, 1gbit",
        "graph, 2 ways, 1gbit",
    ]


def test_a_name_that_no_mode_has_is_refused(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "modes", str(manifest), "--only", "warp drive"]) == ExitCode.INVALID
    assert "warp drive" in capsys.readouterr().err


def test_hybrid_stands_beside_four_way_graph_parallelism(job: GNNPipeJob) -> None:
    names = [mode.title for mode in modes_for(job, ranks=4, rates=["1gbit"], with_dgl=True)]
    assert "hybrid, 2 stages x 2 ways" in names
    assert "hybrid, 2 stages x 2 ways, 1gbit" in names
    assert "graph, 4 ways, 1gbit" in names
    assert "DGL 1.1.3" in names


def test_modes_that_cannot_train_a_job_are_left_out(job: GNNPipeJob) -> None:
    model = job.spec.model.model_copy(update={"kind": "gat", "layers": 1})
    other = job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})
    names = [mode.title for mode in modes_for(other, ranks=2, rates=[], with_dgl=True)]
    chunked = ["1 rank, 16 chunks", "1 rank, 16 chunks in turn"]
    assert names == [EDGE_INDEX, ONE_RANK, TWO_AT_ONCE, *chunked, "graph, 2 ways"]


def test_zeros_are_not_skipped_where_the_border_has_none(job: GNNPipeJob) -> None:
    model = job.spec.model.model_copy(update={"kind": "resgcn"})
    other = job.model_copy(update={"spec": job.spec.model_copy(update={"model": model})})
    titles = [mode.title for mode in modes_for(other, ranks=2, rates=["1gbit"], with_dgl=False)]
    assert not any(SKIPPED in title or SENT in title for title in titles)


def test_a_slow_mode_makes_its_median_in_one_round(job: GNNPipeJob, tmp_path: Path) -> None:
    modes = {m.title: m for m in modes_for(job, ranks=2, rates=["1gbit", "200mbit"], with_dgl=False)}
    slow = {title for title, mode in modes.items() if mode.slow}
    assert slow == {EDGE_INDEX, CSR, "graph, 2 ways, 200mbit"}
    several = Comparison(job, [], 4, 3, tmp_path, tmp_path, "")
    assert several.epochs_of(modes[CSR]) == SLOW_EPOCHS
    assert several.epochs_of(modes[ONE_RANK]) == 4
    assert replace(several, rounds=1).epochs_of(modes[CSR]) == 4  # as asked for


def test_a_warm_up_that_is_longer_than_a_measurement_does_not_stop_it(manifest: Path) -> None:
    warming = load_job(manifest, ["spec.training.learningRateSchedule.warmupEpochs=100"])
    measured = Mode(ONE_RANK).job(warming, EPOCHS)
    assert parse_job(measured.manifest()).spec.training.learning_rate_schedule.warmup_epochs == 0


def test_jobs_that_run_at_once_count_as_their_mean(job: GNNPipeJob, tmp_path: Path) -> None:
    both = Mode(TWO_AT_ONCE, "one_rank", {"slots": "whole"}, copies=2)
    figures = measure(both, job, EPOCHS, tmp_path, tmp_path / "out")
    assert len(figures.seconds) == len(figures.cpu_seconds) == EPOCHS
    assert len(figures.memory_bytes) == 2


@pytest.mark.parametrize("kind", bare.KINDS)
def test_the_bare_loop_trains_as_torch_geometric_does(
    kind: str, job: GNNPipeJob, sage_job: GNNPipeJob, tmp_path: Path
) -> None:
    chosen = sage_job if kind == "sage" else job
    task = {"manifest": chosen.manifest(), "folder": str(tmp_path), "epochs": 4, "adjacency": "csr"}
    assert bare.measure(task).loss == pytest.approx(plain.measure(task).loss, rel=1e-5)


def test_turns_in_one_process_are_of_the_same_training(job: GNNPipeJob, tmp_path: Path) -> None:
    manifest = Mode("one rank").job(job, 4).manifest()
    task = {"manifest": manifest, "folder": str(tmp_path), "epochs": 4, "slots": "whole"}
    figures = by_turns.measure(task)
    settled = bare.measure({**task, "epochs": by_turns.SETTLING + 4}).loss[by_turns.SETTLING :]
    assert figures.loss == pytest.approx(settled, rel=1e-5)
    assert [len(epochs) for epochs in figures.beside.values()] == [4, 4]
    kept = measure(Mode("by turns", "by_turns", {"slots": "whole"}), job, 4, tmp_path, tmp_path / "run")
    assert [len(epochs) for epochs in kept.beside.values()] == [4, 4]


def test_a_mode_that_breaks_says_what_its_log_said(job: GNNPipeJob, tmp_path: Path) -> None:
    broken = Mode("plain on nothing", "plain", {"adjacency": "csr", "folder": "/nowhere", "epochs": "three"})
    with pytest.raises(RunFailed, match="TypeError"):
        measure(broken, job, EPOCHS, tmp_path, tmp_path / "out")


def test_a_ratio_compares_runs_of_the_same_round() -> None:
    quiet, busy = [9.0, 9.0, 1.0, 1.0], [9.0, 9.0, 10.0, 10.0]
    twice_quiet, twice_busy = [9.0, 9.0, 2.0, 2.0], [9.0, 9.0, 20.0, 20.0]
    slow = {"seconds": {"rounds": [twice_quiet, twice_busy]}}
    fast = {"seconds": {"rounds": [quiet, busy]}}
    assert time_ratio(slow, fast) == 2.0


def test_a_wrong_rate_is_refused_before_anything_runs(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["bench", "modes", str(manifest), "--rate", "fast"])
    assert ending.value.code == ExitCode.INVALID
    assert "200mbit or 1gbit" in capsys.readouterr().err


def test_the_engine_takes_chunks_in_turn_and_its_loss_falls(job: GNNPipeJob, tmp_path: Path) -> None:
    in_turn = Mode("in turn", parallelism={"stages": 1, "ways": 1, "chunks": 4})
    manifest = in_turn.job(job, 30).manifest()
    figures = one_rank.measure(
        {"manifest": manifest, "folder": str(tmp_path), "epochs": 30, "slots": "in turn"}
    )
    assert figures.loss[-1] < figures.loss[0]
