"""Does training swing? The autocorrelation of the gradient over the last epochs.

A delay in the feedback of training (history is an epoch old) shows as a wave: gradients of a few epochs apart point
against each other. Each rank boils its gradient down to a few numbers; rank 0 correlates them.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

BUCKETS = 64  # numbers per rank: products of gradients are estimated to about an eighth
WINDOW_EPOCHS = 24
# Half a wave, for the momentum of 0.9 that Adam has. At 4 a moving average that trains well shows a dip of its own.
LAGS = range(5, 9)


class Sketch:
    """A gradient as BUCKETS sums of entries with random signs: products of sketches estimate those of gradients."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        generator = torch.Generator().manual_seed(0)
        self._signs = [
            (torch.randint(0, 2, p.shape, generator=generator, dtype=torch.int8) * 2 - 1).to(p.device)
            for p in self._parameters
        ]

    def take(self) -> list[float]:
        """Of the gradients that are on the parameters now."""
        total = torch.zeros(BUCKETS, dtype=torch.float64)
        for parameter, signs in zip(self._parameters, self._signs, strict=True):
            if parameter.grad is not None:
                total += _fold(parameter.grad * signs).double().cpu()
        return total.float().tolist()


def _fold(signed: Tensor) -> Tensor:
    """[BUCKETS] sums over entries that lie BUCKETS apart."""
    flat = signed.flatten()
    whole = flat.numel() // BUCKETS * BUCKETS
    sums = flat[:whole].view(-1, BUCKETS).sum(0)
    sums[: flat.numel() - whole] += flat[whole:]
    return sums


class Window:
    """The sketches of all ranks over the last epochs."""

    def __init__(self) -> None:
        self._sketches: deque[NDArray[np.float32]] = deque(maxlen=WINDOW_EPOCHS)

    def add(self, sketches: Sequence[Sequence[float]]) -> None:
        """One epoch's, rank by rank."""
        self._sketches.append(np.array(sketches, dtype=np.float32).ravel())

    def oscillation(self) -> float | None:
        """The lowest autocorrelation over LAGS, from -1 to 1; None before the window is full."""
        if len(self._sketches) < WINDOW_EPOCHS:
            return None
        rows = np.stack(self._sketches).astype(np.float64)
        if not np.isfinite(rows).all() or not rows.any():
            return None
        return min(_correlation(rows[:-lag], rows[lag:]) for lag in LAGS)

    def saved(self) -> list[str]:
        """As text, for a checkpoint: a resumed run measures what the uninterrupted one would have measured."""
        return [base64.b64encode(sketch.tobytes()).decode() for sketch in self._sketches]

    def restore(self, saved: Sequence[str]) -> None:
        self._sketches.clear()
        for text in saved:
            self._sketches.append(np.frombuffer(base64.b64decode(text), dtype=np.float32))
        if len({len(sketch) for sketch in self._sketches}) > 1:  # of another number of ranks
            self._sketches.clear()


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / scale if scale else 0.0
