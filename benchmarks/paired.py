"""Two ways to train, compared seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev


def ratio(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """How many times as many epochs the first took, and the standard error of that; nan for a single pair."""
    base = fmean(b for _, b in pairs)
    times = fmean(a for a, _ in pairs) / base
    return times, standard_error([(a - times * b) / base for a, b in pairs])


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; nothing can be said about one."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
