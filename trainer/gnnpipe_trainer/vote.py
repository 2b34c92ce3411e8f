"""All ranks stop after the same epoch, whichever of them was asked to."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor


class StopVote:
    """After each epoch every rank says whether it was asked to stop; the answer is read one epoch later.

    By then it has long arrived, so nobody waits for it. Asked in epoch e, all stop after epoch e + 1.
    """

    def __init__(self, control: dist.ProcessGroup, asked: Callable[[], bool]) -> None:
        self._control, self._asked = control, asked
        self._pending: tuple[dist.Work, Tensor] | None = None

    def stop_now(self) -> bool:
        """Ask and wait for the answer: before the first epoch."""
        self._cast()
        return self._read()

    def stop_after_epoch(self) -> bool:
        stop = self._read()
        self._cast()
        return stop

    def close(self) -> None:
        """Read what is on its way, so that no rank leaves while another waits for its vote."""
        self._read()

    def _cast(self) -> None:
        votes = torch.tensor([int(self._asked())], dtype=torch.int32)
        work = dist.all_reduce(votes, group=self._control, async_op=True)
        assert work is not None
        self._pending = (work, votes)

    def _read(self) -> bool:
        if self._pending is None:
            return False
        work, votes = self._pending
        self._pending = None
        work.wait()
        return bool(votes.item())
