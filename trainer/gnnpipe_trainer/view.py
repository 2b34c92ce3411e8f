"""What a person sees while a job trains, and the short table at its end."""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan

Record = dict[str, Any]

_RECENT_EPOCHS = 20  # speed is judged by these, so that a slow start is soon forgotten
_PLAIN_WIDTH = 120  # of what is not a terminal: a log file does not wrap


class LiveView:
    """Follows a run: a block that redraws itself in a terminal, one line per evaluated epoch elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _make_console()
        self._live: Live | None = None
        self._title = ""
        self._epochs = 0
        self._record: Record = {}
        self._accuracy: Record = {}
        self._seconds: deque[float] = deque(maxlen=_RECENT_EPOCHS)

    def start(self, job: GNNPipeJob, plan: Plan) -> None:
        """Begin with a job; called before its first epoch."""
        self._title = _title(job, plan)
        self._epochs = job.spec.training.epochs
        self._record, self._accuracy = {}, {}
        self._seconds.clear()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self._block(), console=self._console, refresh_per_second=8)
            self._live.start()
        else:
            self._say(f"{self._title}, {_count(self._epochs, 'epoch')}")

    def epoch(self, record: Record) -> None:
        """Take in a line of epochs.jsonl."""
        self._record = record
        self._seconds.append(record["seconds"])
        self._accuracy = record.get("accuracy") or self._accuracy
        if record.get("warning"):
            self.note(record["warning"])
        if self._live is not None:
            self._live.update(self._block())
        elif record.get("accuracy"):
            self._say(self._line())

    def note(self, sentence: str) -> None:
        """Say something once; it stays above the block."""
        self._say(sentence)

    def finish(self) -> None:
        """Leave the last picture standing. Calling it twice does no harm."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    @property
    def _done(self) -> int:
        """Epochs done; records count from 0."""
        return int(self._record["epoch"]) + 1 if self._record else 0

    def _eta(self) -> str:
        if not self._seconds:
            return "-:--"
        return duration((self._epochs - self._done) * statistics.median(self._seconds))

    def _figures(self) -> list[tuple[str, str]]:
        """(label, value) of everything known about the last epoch, in the order they are shown."""
        record, accuracy = self._record, self._accuracy
        return [
            ("loss", f"{record['loss']:.4f}"),
            *((split, percent(accuracy.get(split))) for split in ("train", "val", "test")),
            ("s/epoch", f"{statistics.median(self._seconds):.3f}"),
            ("sent/epoch", decimal(record["bytes"]["total"])),
            ("bubble", percent(statistics.mean(record["idle"]), digits=0)),
        ]

    def _block(self) -> RenderableType:
        progress = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=self._epochs, completed=self._done, width=40)
        progress.add_row(f"epoch {self._done}/{self._epochs}", bar, f"{self._eta()} left")
        if not self._record:
            return Group(Text(self._title, style="bold"), progress)
        figures = Table.grid(padding=(0, 3))
        figures.add_row(*(Text(label, style="dim") for label, _ in self._figures()))
        figures.add_row(*(value for _, value in self._figures()))
        return Group(Text(self._title, style="bold"), progress, figures)

    def _line(self) -> str:
        """Aligned by fixed widths, for logs."""
        values = dict(self._figures())
        digits = len(str(self._epochs))
        return "  ".join(
            [
                f"epoch {self._done:>{digits}}/{self._epochs}",
                f"loss {values['loss']:>8}",
                *(f"{split} {values[split]:>6}" for split in ("train", "val", "test")),
                f"{values['s/epoch']:>7} s/epoch",
                f"{values['sent/epoch']:>9}/epoch",
                f"bubble {values['bubble']:>4}",
                f"{self._eta():>7} left",
            ]
        )


def final_table(
    result: Record,
    compare: Record | None,
    graph_parallel_bytes: int | None,
    console: Console | None = None,
) -> None:
    """What was trained and how well: the run, and beside each figure what it is to be measured against.

    `result` and `compare` (plain full-batch training of the same model) are contents of result.json.
    `graph_parallel_bytes` are the activations that graph parallelism would send per epoch; gradients of the
    weights are left out on both sides.
    """
    table = Table(title=_result_title(result), title_justify="left", title_style="bold", box=box.ROUNDED)
    table.add_column("")
    table.add_column("this run", justify="right")
    table.add_column("to compare with")
    for split, label in (("test", "test accuracy"), ("val", "validation accuracy")):
        table.add_row(
            label, _accuracy(result, split), _beside(compare, lambda run, s=split: _accuracy(run, s))
        )
    sent = result["bytesPerEpoch"]
    crossed = sent["pipeline"] + sent["graph"]
    table.add_row(
        "sent per epoch", decimal(crossed), _against_graph_parallelism(crossed, graph_parallel_bytes)
    )
    table.add_row("seconds per epoch", _epoch_seconds(result), _beside(compare, _epoch_seconds))
    bubble = result["bubble"]
    table.add_row("bubble", percent(bubble["measured"]), f"{percent(bubble['ideal'])} ideal")
    table.add_row("peak memory per rank", _peak_memory(result), _beside(compare, _peak_memory))
    (console or _make_console()).print(table)


def show_error(sentences: str) -> None:
    """Say what went wrong on stderr, one line per sentence, never wrapped or coloured."""
    Console(stderr=True).print(sentences, style=None, markup=False, highlight=False, soft_wrap=True)


def percent(share: float | None, digits: int = 1) -> str:
    """0.734 -> 73.4%; a dash where there is nothing to show."""
    return "-" if share is None else f"{100 * share:.{digits}f}%"


def duration(seconds: float) -> str:
    """75 -> 1:15; 3675 -> 1:01:15."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def _title(job: GNNPipeJob, plan: Plan) -> str:
    model = job.spec.model
    return f"{job.name}: {model.kind}, {_count(model.layers, 'layer')} of width {model.hidden}, {_cut(plan.as_dict())}"


def _result_title(result: Record) -> str:
    seconds = result["seconds"]["total"]
    best = f", best at epoch {result['bestEpoch'] + 1}" if result.get("bestEpoch") is not None else ""
    epochs = _count(result["epochs"], "epoch")
    return f"{result['job']}: {_cut(result['plan'])}, {epochs} in {seconds:.1f} s{best}"


def _cut(plan: Record) -> str:
    """How layers and graph are cut, in words."""
    if plan["stages"] * plan["ways"] * plan["chunks"] == 1:
        return "plain full batch"
    ways = f" x {_count(plan['ways'], 'way')}" if plan["ways"] > 1 else ""
    return f"{_count(plan['stages'], 'stage')}{ways}, {_count(plan['chunks'], 'chunk')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _accuracy(result: Record, split: str) -> str:
    return percent((result.get("accuracy") or {}).get(split))


def _epoch_seconds(result: Record) -> str:
    return f"{result['seconds']['epochMedian']:.3f}"


def _peak_memory(result: Record) -> str:
    return decimal(max(result["peakMemoryBytes"]))


def _beside(compare: Record | None, figure: Any) -> str:
    return "" if compare is None else f"{figure(compare)} plain full batch"


def _against_graph_parallelism(crossed: int, graph_parallel_bytes: int | None) -> str:
    if not graph_parallel_bytes:
        return ""
    factor = f", {graph_parallel_bytes / crossed:.1f}x as much" if crossed else ""
    return f"{decimal(graph_parallel_bytes)} graph parallelism{factor}"
