"""What the pods say of the training: /progress while it goes on, the termination message at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from gnnpipe_api.status import Accuracy, JobStatus
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.said import read_said

WRITE_EVERY = timedelta(seconds=10)  # how often progress alone may cause a write of the status
KINDS = ("pipeline", "graph", "gradient", "total")  # of bytes; a pod can make no others, nor series of them
MOST = 2**53  # what JSON can count to, and the API server takes


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of a job, with the names that they have in its status; None where the pods did not say."""

    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    accuracy: Accuracy | None = None
    seconds_per_epoch: float | None = None
    eta_seconds: float | None = None
    bubble: float | None = None
    bubble_ideal: float | None = None
    bytes_per_epoch: dict[str, int] | None = None  # by kind


def read_progress(raw: Mapping[str, Any]) -> Progress:
    """From /progress. Lenient: a trainer of another version must not break the operator."""
    accuracy = raw.get("accuracy")
    waited = raw.get("bubble")
    bubble = waited if isinstance(waited, dict) else {"measured": waited}
    sent = raw.get("bytesPerEpoch")
    pace, eta = _number(raw.get("secondsPerEpoch")), _number(raw.get("etaSeconds"))
    return Progress(
        epoch=_whole(raw.get("epoch")),
        epochs=_whole(raw.get("epochs")),
        loss=_short(raw.get("loss")),
        accuracy=_accuracy(accuracy) if isinstance(accuracy, dict) else None,
        seconds_per_epoch=None if pace is None else round(pace, 3),
        eta_seconds=None if eta is None else round(eta),
        bubble=_number(bubble.get("measured")),
        bubble_ideal=_number(bubble.get("ideal")),
        bytes_per_epoch={kind: n for kind in KINDS if (n := _whole(sent.get(kind))) is not None}
        if isinstance(sent, dict)
        else None,
    )


def read_result(pods: Iterable[ObservedPod]) -> Progress | None:
    """The final word: the first termination message that is a result.json."""
    for pod in sorted(pods, key=lambda p: p.stage):
        raw = read_said(pod.message)
        if raw and "accuracy" in raw:
            return read_progress(_flattened(raw))
    return None


def told_before(status: JobStatus) -> Progress:
    """The figures that the status remembers."""
    return Progress(**{field.name: getattr(status, field.name) for field in fields(Progress)})


def with_progress(
    status: JobStatus, progress: Progress | None, now: datetime, final: bool = False
) -> JobStatus:
    """The status with newer figures; unchanged while the last ones are young, unless these are final."""
    if progress is None:
        return status
    last = status.progress_time
    if not final and last is not None and last <= now < last + WRITE_EVERY:
        return status
    names = [field.name for field in fields(Progress)]
    news = {name: value for name in names if (value := getattr(progress, name)) is not None}
    if all(getattr(status, name) == value for name, value in news.items()):
        return status
    if progress.epoch is not None and progress.epochs is not None:
        news["progress"] = f"{progress.epoch}/{progress.epochs}"
    return status.model_copy(update={**news, "progress_time": now})


def _flattened(result: Mapping[str, Any]) -> dict[str, Any]:
    """result.json in the words of /progress."""
    seconds = result.get("seconds")
    return {
        **result,
        "epoch": result.get("epochs"),
        "secondsPerEpoch": seconds.get("epochMedian") if isinstance(seconds, dict) else None,
        "etaSeconds": 0,
    }


def _accuracy(raw: Mapping[str, Any]) -> Accuracy:
    return Accuracy(train=_short(raw.get("train")), val=_short(raw.get("val")), test=_short(raw.get("test")))


def _short(value: Any) -> float | None:
    """Four digits, as a column of `kubectl get` can bear; result.json has them all."""
    number = _number(value)
    return None if number is None else float(f"{number:.4g}")


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or not 0 <= number <= MOST else int(number)


def _number(value: Any) -> float | None:
    """JSON knows no NaN and the API server takes none: a loss that exploded is left out."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
