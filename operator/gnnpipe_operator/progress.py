"""What the pods say of the training: /progress while it goes on, the termination message at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gnnpipe_api.status import Accuracy, JobStatus
from gnnpipe_operator.observed import ObservedPod
from gnnpipe_operator.said import read_said

WRITE_EVERY = timedelta(seconds=10)  # how often progress alone may cause a write of the status


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of a job; None where the pods did not say."""

    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    accuracy: Accuracy | None = None
    seconds_per_epoch: float | None = None
    eta_seconds: float | None = None
    bubble: float | None = None
    bubble_ideal: float | None = None
    bytes_per_epoch: dict[str, float] = field(default_factory=dict)  # by kind


def read_progress(raw: Mapping[str, Any]) -> Progress:
    """From /progress. Lenient: a trainer of another version must not break the operator."""
    accuracy = raw.get("accuracy")
    waited = raw.get("bubble")
    bubble = waited if isinstance(waited, dict) else {"measured": waited}
    sent = raw.get("bytesPerEpoch")
    epoch, epochs = _number(raw.get("epoch")), _number(raw.get("epochs"))
    pace, eta = _number(raw.get("secondsPerEpoch")), _number(raw.get("etaSeconds"))
    return Progress(
        epoch=None if epoch is None else int(epoch),
        epochs=None if epochs is None else int(epochs),
        loss=_short(raw.get("loss")),
        accuracy=_accuracy(accuracy) if isinstance(accuracy, dict) else None,
        seconds_per_epoch=None if pace is None else round(pace, 3),
        eta_seconds=None if eta is None else round(eta),
        bubble=_number(bubble.get("measured")),
        bubble_ideal=_number(bubble.get("ideal")),
        bytes_per_epoch={k: n for k, v in sent.items() if (n := _number(v)) is not None}
        if isinstance(sent, dict)
        else {},
    )


def read_result(pods: Iterable[ObservedPod]) -> Progress | None:
    """The final word: the first termination message that is a result.json."""
    for pod in sorted(pods, key=lambda p: p.stage):
        raw = read_said(pod.message)
        if raw and "accuracy" in raw:
            return read_progress(_flattened(raw))
    return None


def with_progress(
    status: JobStatus, progress: Progress | None, now: datetime, final: bool = False
) -> JobStatus:
    """The status with newer figures; unchanged while the last ones are young, unless these are final."""
    if progress is None:
        return status
    last = status.progress_time
    if not final and last is not None and last <= now < last + WRITE_EVERY:
        return status
    names = ("epoch", "epochs", "loss", "accuracy", "seconds_per_epoch", "eta_seconds", "bubble")
    news = {name: getattr(progress, name) for name in names if getattr(progress, name) is not None}
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


def _number(value: Any) -> float | None:
    """JSON knows no NaN and the API server takes none: a loss that exploded is left out."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
