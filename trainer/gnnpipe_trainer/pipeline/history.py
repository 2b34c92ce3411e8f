"""What a block's neighbours read: fresh rows where they have come by this epoch, historical ones elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnpipe_api.job import HistorySpec
from gnnpipe_trainer import kernels
from gnnpipe_trainer.pages import on_pages

DRIFT_ROWS = 256  # of each push are compared, evenly spread: enough for a mean, and next to no memory traffic


class History:
    """One block's buffer [rows, width]. `push` what a slot turned out to be; read `live` in between.

    The buffer may be narrower than what is pushed (bf16), which halves its memory and the traffic of every sum.

    At the end of an epoch the buffer for the next one is ready, because each push has already blended the
    fresh rows into it: nothing is copied, the two buffers change places.
    """

    def __init__(self, spec: HistorySpec, live: Tensor, following: Tensor | None = None) -> None:
        """Made by `side_by_side`. `following` is where modes that blend prepare the next epoch's."""
        self.spec, self.live, self._next = spec, live, following
        # Whether what is stale is to be read moved by `shift`.
        self.corrects_mean = spec.mode == "shift" or spec.correction == "mean"
        self._epoch = 0
        # Mean of (fresh - historical) so far; a sum over many rows, so no narrower than fp32.
        self.shift = live.new_zeros(live.shape[1], dtype=torch.promote_types(live.dtype, torch.float32))
        self._shift_rows = 0
        # Squares of (fresh - served), and of fresh.
        self._drift = torch.zeros(2, dtype=torch.float64, device=live.device)
        self._blends_at_once = spec.mode == "ema" and spec.decay > 0.5 and kernels.fits(live)  # see blend.c

    @property
    def keeps_gradients(self) -> bool:
        """Whether its readers' gradients of this epoch are for the next one."""
        return self.spec.gradients in ("last", "average")

    @property
    def averages_gradients(self) -> bool:
        """Whether they are averaged over the epochs, as the history itself is."""
        return self.spec.gradients == "average"

    @property
    def coming(self) -> Tensor:
        """What the next epoch is to read. Whole after the last push of this one, and left alone until the next."""
        return self.live if self._next is None else self._next

    def seed(self, exact: Tensor) -> None:
        """Start from exact embeddings [rows, width]."""
        self.live.copy_(exact)

    def resume_at(self, epochs_done: int) -> None:
        """Count on from a checkpoint: mode frozen refreshes by the number of epochs done."""
        self._epoch = epochs_done

    def push(self, rows: slice, fresh: Tensor) -> Tensor | None:
        """Own rows, as they turned out in this epoch. Returns where they lie until it is over, if they do unchanged."""
        served = self.live[rows]
        if self.corrects_mean:
            self._measure_shift(served, fresh)
        if self._takes_at_once(fresh):
            kernels.blend(self._entry(rows, _drift_stride(len(fresh))), fresh)
            return served
        pushed = fresh.to(self.live.dtype)
        self._measure_drift(served, pushed)
        self.push_halo(rows, pushed)
        return served if pushed.dtype is fresh.dtype else None

    def entry(self, rows: slice) -> kernels.Entry | None:
        """Who makes own rows with our loops may push them as they are made; None: not into this history."""
        if not self._blends_at_once or self.corrects_mean:
            return None
        return self._entry(rows, _drift_stride(rows.stop - rows.start))

    def landing(self, rows: slice, like: Tensor) -> Tensor:
        """Where rows of other ways arrive, as wide as `like`; `push_halo` them once they are there."""
        return like.new_empty(rows.stop - rows.start, like.shape[1])

    def push_halo(self, rows: slice, fresh: Tensor) -> None:
        """Rows of other ways; their drift and shift are measured where they are at home."""
        if self._takes_at_once(fresh):
            kernels.blend(self._entry(rows, stride=0), fresh)
            return
        served = self.live[rows]
        fresh = fresh.to(self.live.dtype)
        if self._next is not None:
            self._blend(served, fresh, out=self._next[rows])
        served.copy_(fresh)

    def end_epoch(self) -> None:
        if self._next is not None:
            self.live, self._next = self._next, self.live
        self._epoch += 1
        self.shift.zero_()
        self._shift_rows = 0

    def take_drift(self) -> tuple[float, float]:
        """Squared norms since the last call: of (fresh - served), and of fresh."""
        difference, magnitude = self._drift.tolist()
        self._drift.zero_()
        return difference, magnitude

    def _takes_at_once(self, fresh: Tensor) -> bool:
        return self._blends_at_once and kernels.fits(fresh)

    def _entry(self, rows: slice, stride: int) -> kernels.Entry:
        assert self._next is not None
        return kernels.Entry(self.live[rows], self._next[rows], 1.0 - self.spec.decay, stride, self._drift)

    def _blend(self, served: Tensor, fresh: Tensor, out: Tensor) -> None:
        if self.spec.mode == "ema":
            torch.lerp(served, fresh, 1.0 - self.spec.decay, out=out)
        else:
            refresh = (self._epoch + 1) % self.spec.refresh_every == 0
            out.copy_(fresh if refresh else served)

    def _measure_shift(self, served: Tensor, fresh: Tensor) -> None:
        """Two sums over columns, which write nothing as large as the rows."""
        self._shift_rows += fresh.shape[0]
        moved = fresh.sum(0, dtype=self.shift.dtype) - served.sum(0, dtype=self.shift.dtype)
        self.shift += (moved - self.shift * fresh.shape[0]) / max(1, self._shift_rows)

    def _measure_drift(self, served: Tensor, fresh: Tensor) -> None:
        stride = _drift_stride(len(fresh))
        sample = fresh[::stride].flatten()  # dot products of copies are quicker than norms of views
        difference = sample - served[::stride].flatten()
        self._drift += torch.stack([torch.dot(difference, difference), torch.dot(sample, sample)])


def _drift_stride(rows: int) -> int:
    return -(-rows // DRIFT_ROWS) or 1


class WholeGraph(History):
    """The buffer where the whole graph is one slot: everything is fresh, so there is no history to keep."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(HistorySpec(mode="previous"), torch.zeros(0, width, dtype=dtype, device=device))
        self.rows = rows

    def seed(self, exact: Tensor) -> None:
        pass

    def landing(self, rows: slice, like: Tensor) -> Tensor:
        """In the buffer itself, which is taken once."""
        if len(self.live) != self.rows:
            self.live = like.new_empty(self.rows, like.shape[1])
        return self.live[rows]

    def push(self, rows: slice, fresh: Tensor) -> None:
        """Nobody wants to lie here: whose rows are read as they are keeps them."""
        if rows.stop - rows.start == self.rows:
            self.live = fresh  # nothing comes from other ways: no copy is needed
        else:
            self.landing(rows, fresh).copy_(fresh)

    def push_halo(self, rows: slice, fresh: Tensor) -> None:
        """They have landed where they belong."""


def side_by_side(
    rows: int, widths: Sequence[int], spec: HistorySpec, dtype: torch.dtype, device: torch.device
) -> list[History]:
    """The histories of a stage's blocks. Their buffers lie in one stretch, which checkpoints are written from."""
    buffers = 2 if spec.mode in ("ema", "frozen") else 1
    sizes = [rows * width for width in widths]
    stretches = [_stretch(sum(sizes), dtype, device) for _ in range(buffers)]
    blocks = zip(widths, *(torch.split(stretch, sizes) for stretch in stretches), strict=True)
    return [History(spec, *(piece.view(rows, width) for piece in pieces)) for width, *pieces in blocks]


def _stretch(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return on_pages(length, dtype)
    return torch.zeros(length, dtype=dtype, device=device)
