"""The live view and the final table, as text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import load_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.view import LiveView, duration, final_table, percent, show_error

ACCURACY = {"train": 0.9, "val": 0.8, "test": 0.75}


@pytest.fixture
def job() -> GNNPipeJob:
    quickstart = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
    return load_job(quickstart, ["spec.training.epochs=100", "spec.model.layers=16"])


def record(epoch: int, **more: Any) -> dict[str, Any]:
    sent = {"pipeline": 2_560_000, "graph": 0, "gradient": 0, "total": 2_560_000}
    return {"epoch": epoch, "loss": 1.23456, "seconds": 0.5, "bytes": sent, "idle": [0.1, 0.2], **more}


def result(**more: Any) -> dict[str, Any]:
    return {
        "job": "quickstart",
        "plan": {"stages": 2, "ways": 1, "chunks": 8, "layersPerStage": [8, 8]},
        "epochs": 60,
        "loss": 0.5,
        "accuracy": ACCURACY,
        "bestEpoch": 49,
        "seconds": {"total": 31.7, "epochMedian": 0.512},
        "bytesPerEpoch": {"pipeline": 2_000_000, "graph": 500_000, "gradient": 7, "total": 2_500_007},
        "bubble": {"measured": 0.123, "ideal": 0.111},
        "peakMemoryBytes": [300_000_000, 410_000_000],
        **more,
    }


def log() -> Console:
    return Console(file=io.StringIO(), width=120)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=120, force_terminal=True, _environ={"TERM": "xterm-256color"})


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if label in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_log_gets_one_aligned_line_per_evaluated_epoch(job: GNNPipeJob) -> None:
    console = log()
    view = LiveView(console)
    view.start(job, make_plan(job))
    view.epoch(record(0))
    view.epoch(record(8, accuracy=ACCURACY))
    view.epoch(record(99, accuracy={**ACCURACY, "train": 1.0}))
    view.finish()
    title, first, second = written(console).splitlines()
    assert title == "quickstart: gcnii, 16 layers of width 64, 2 stages, 8 chunks, 100 epochs"
    assert first == (
        "epoch   9/100  loss   1.2346  train  90.0%  val  80.0%  test  75.0%"
        "    0.500 s/epoch     2.6 MB/epoch  bubble  15%     0:46 left"
    )
    assert second.startswith("epoch 100/100  loss   1.2346  train 100.0%  val")
    assert len(first) == len(second)


def test_a_log_holds_no_escape_codes(job: GNNPipeJob) -> None:
    console = log()
    view = LiveView(console)
    view.start(job, make_plan(job))
    view.epoch(record(0, accuracy=ACCURACY))
    view.note("[bold]not markup[/bold]")
    view.finish()
    final_table(result(), None, None, console)
    assert "\x1b" not in written(console)
    assert "[bold]not markup[/bold]" in written(console)


def test_a_terminal_shows_every_epoch_with_all_figures(job: GNNPipeJob) -> None:
    console = terminal()
    view = LiveView(console)
    view.start(job, make_plan(job))
    view.epoch(record(24, accuracy=ACCURACY))
    view.epoch(record(25))  # not evaluated: the last accuracies stay
    view.finish()
    last_picture = written(console).split("epoch 26/100")[-1]
    for figure in ("0:37 left", "1.2346", "90.0%", "80.0%", "75.0%", "0.500", "2.6 MB", "15%"):
        assert figure in last_picture


def test_finish_twice_or_without_a_start_does_no_harm(job: GNNPipeJob) -> None:
    view = LiveView(terminal())
    view.finish()
    view.start(job, make_plan(job))
    view.finish()
    view.finish()


def test_a_loss_that_is_no_number_is_shown_as_such(job: GNNPipeJob) -> None:
    console = log()
    view = LiveView(console)
    view.start(job, make_plan(job))
    view.epoch(record(0, loss=float("nan"), accuracy=ACCURACY))
    assert "loss      nan" in written(console)


def test_the_final_table_sets_each_figure_beside_what_it_is_measured_against() -> None:
    console = log()
    plain = result(
        accuracy={"train": 0.95, "val": 0.82, "test": 0.76},
        seconds={"total": 60.0, "epochMedian": 0.9},
        peakMemoryBytes=[800_000_000],
    )
    final_table(result(), plain, 20_000_000, console)
    text = written(console)
    assert text.splitlines()[0].strip() == (
        "quickstart: 2 stages, 8 chunks, 60 epochs in 31.7 s, best at epoch 50"
    )
    assert row(text, "test accuracy")[1:] == ["75.0%", "76.0% plain full batch"]
    assert row(text, "validation accuracy")[1:] == ["80.0%", "82.0% plain full batch"]
    assert row(text, "sent per epoch")[1:] == ["2.5 MB", "20.0 MB graph parallelism, 8.0x as much"]
    assert row(text, "seconds per epoch")[1:] == ["0.512", "0.900 plain full batch"]
    assert row(text, "bubble")[1:] == ["12.3%", "11.1% ideal"]
    assert row(text, "peak memory")[1:] == ["410.0 MB", "800.0 MB plain full batch"]


def test_the_final_table_of_one_device_has_nothing_to_compare_with() -> None:
    console = log()
    alone = result(
        plan={"stages": 1, "ways": 1, "chunks": 1, "layersPerStage": [16]},
        bytesPerEpoch={"pipeline": 0, "graph": 0, "gradient": 0, "total": 0},
        accuracy=None,
        bestEpoch=None,
    )
    final_table(alone, None, None, console)
    text = written(console)
    assert text.splitlines()[0].strip() == "quickstart: plain full batch, 60 epochs in 31.7 s"
    assert row(text, "test accuracy")[1:] == ["-", ""]
    assert row(text, "sent per epoch")[1:] == ["0 bytes", ""]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3675, "1:01:15"), (-1, "0:00")]
)
def test_durations_read_as_on_a_clock(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_shares_read_as_percent() -> None:
    assert [percent(0.7345), percent(1.0, digits=0), percent(None)] == ["73.5%", "100%", "-"]


def test_errors_go_to_stderr_unwrapped(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "spec.graph.path: [red]" + "long " * 60
    show_error(sentence)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", sentence + "\n")
