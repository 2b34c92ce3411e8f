"""Between two aggregations lies a *segment*: the update of one block and the message of the next.

It is the unit of backward: gradients stop there, are brought across slots and ranks, and go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from gnnpipe_trainer.models.block import ByHand, State
from gnnpipe_trainer.models.linear import backward_by_hand
from gnnpipe_trainer.pipeline.leaves import Leaves

Gradients = tuple[Tensor | None, ...]


@dataclass(slots=True)
class Segment:
    """One segment of one slot that autograd goes back through. Its inputs are leaves."""

    inputs: State
    leaves: Leaves | None  # what the aggregation before it gathered; None for a stage's first segment
    outputs: State | None = None  # or the loss, at the very end; None: to be computed again in backward
    message: Tensor | None = None  # what the aggregation after it publishes; None for a stage's last segment

    def backward(self, gradients: Gradients, message_gradient: Tensor | None) -> Gradients:
        """The gradients of the inputs; those of what was gathered are left with the leaves."""
        assert self.outputs is not None
        if self.message is self.outputs[0]:
            gradients, message_gradient = (_sum(message_gradient, gradients[0]), *gradients[1:]), None
        if self.outputs is self.inputs and message_gradient is None:
            return gradients  # received, and read by neighbours as it is
        roots = list(zip((*self.outputs, self.message), (*gradients, message_gradient), strict=True))
        live = [
            (t, g if g.dtype is t.dtype else g.to(t.dtype))
            for t, g in roots
            if t is not None and g is not None and t.requires_grad
        ]
        if live:
            tensors, flowing = zip(*live, strict=True)
            # As torch.autograd.backward does, without its checks, which take as long as a small product.
            Variable._execution_engine.run_backward(
                tensors, flowing, False, False, (), allow_unreachable=True, accumulate_grad=True
            )
        if self.leaves is not None:
            self.leaves.collect()
        return tuple([t.grad for t in self.inputs])


@dataclass(slots=True)
class HandSegment:
    """One whose backward is written out (models/by_hand.py)."""

    by_hand: ByHand
    leaves: Leaves
    own: Tensor  # the state before
    wants_own: bool  # whether its gradient is wanted
    result: Tensor = field(init=False)  # the state after
    sent_by: nn.Linear | None = (
        None  # what makes the message of it; None: it is that itself, or there is none
    )
    d_result: Tensor | None = None  # what the loss says of it, at the very end, and in its place

    def backward(
        self, gradients: Gradients, message_gradient: Tensor | None, place: Tensor | None
    ) -> Gradients:
        """The gradient of the state before; that of what was gathered is left with the leaves, at `place` if given."""
        if self.sent_by is not None and message_gradient is not None:
            d_message, message_gradient = message_gradient, torch.empty_like(self.result)
            backward_by_hand(self.sent_by, d_message, None, self.result, message_gradient, with_bias=False)
        above = gradients[0] if self.d_result is None else self.d_result
        dh, leaves = _sum(message_gradient, above), self.leaves
        if dh is None:
            return (None,)
        assert leaves.gathered is not None
        if not leaves.constant:
            leaves.d_gathered = torch.empty_like(leaves.gathered) if place is None else place
        d_own = self.by_hand.backward(
            dh, self.result, leaves.gathered, self.own, leaves.d_gathered, self.wants_own
        )
        return (d_own,)


def _sum(message_gradient: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """In the first one's place: it was made for nobody else."""
    if message_gradient is None or gradient is None:
        return gradient if message_gradient is None else message_gradient
    return message_gradient.add_(gradient)
