"""What a slot takes out of a block's buffer, and how its own rows get there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gnnpipe_trainer.models.linear import lie_in, want_gradient_in
from gnnpipe_trainer.pipeline.history import History, WholeGraph
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.wire import Ways, nothing_to_wait_for


@dataclass(slots=True)
class Leaves:
    """What a slot took out of a block's buffer, and the gradients that flow back there."""

    gathered: Tensor | None  # [n, width] weighted sum, if the block is one
    rows: Tensor  # [n, width] own rows; for a conv: own rows, then halo rows
    constant: bool = False  # nothing flows back
    d_gathered: Tensor | None = None
    d_rows: Tensor | None = None

    def track(self, place: Tensor | None) -> None:
        """From now on autograd collects gradients here; that of the sum is best written to `place`."""
        if self.constant:
            return
        # By .data, no view: rows of others lie beside these and may still change.
        self.rows = self.rows.data.requires_grad_()
        if self.gathered is not None:
            self.gathered.requires_grad_()
            if place is not None:
                want_gradient_in(self.gathered, place)

    def collect(self) -> None:
        """What autograd has found."""
        self.d_rows = self.rows.grad
        self.d_gathered = None if self.gathered is None else self.gathered.grad


def publish(
    shard: Shard, history: History, ways: Ways, slot: int | None, message: Tensor, pushed: bool = False
) -> tuple[Tensor, Callable[[], None]]:
    """Make a slot's fresh rows readable here, unless they are already, and start swapping those that other ways need.

    Returns where the slot's rows lie from now on, `message` too, and what to call before halo rows are read.
    """
    side = shard.inward
    own, exchanges = side.rows_of(slot), side.exchanges(slot)
    fresh = message.detach()
    arriving = [(e.way, history.landing(e.receive, fresh)) for e in exchanges]
    wait = nothing_to_wait_for
    if exchanges:
        wait = ways.swap([(e.way, fresh[e.send - own.start]) for e in exchanges], arriving)
    place = None if pushed else history.push(own, fresh)
    if place is None:
        place = fresh
    elif message.requires_grad:
        lie_in(message, place)
    if not exchanges:
        return place, wait

    def arrive() -> None:
        wait()
        for exchange, (_, rows) in zip(exchanges, arriving, strict=True):
            history.push_halo(exchange.receive, rows)

    return place, arrive


def whole_graph(shard: Shard, message: Tensor) -> WholeGraph:
    """A buffer for one exact pass; history stays as it is."""
    return WholeGraph(shard.inward.rows, message.shape[1], message.dtype, message.device)
