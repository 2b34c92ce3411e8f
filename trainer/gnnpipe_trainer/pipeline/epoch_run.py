"""One epoch of one rank: carries out the actions of its schedule, and posts receives ahead of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnpipe_trainer.models.block import State
from gnnpipe_trainer.models.linear import WeightGradientQueue, add_weight_gradients, defer_weight_gradients
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.schedule import Action, Move, Work
from gnnpipe_trainer.pipeline.segment import Gradients

if TYPE_CHECKING:
    from gnnpipe_trainer.pipeline.engine import Engine

RECEIVES_AHEAD = 16  # posted before they are needed, so that a sender never waits for this rank's compute


class EpochRun:
    """One epoch under way."""

    def __init__(self, engine: Engine, schedule: list[Action], freshness: Freshness) -> None:
        self.engine, self.freshness = engine, freshness
        self.order: list[int | None] = [None] if freshness.all_fresh else list(freshness.order)
        self.loss: Tensor | float = 0.0
        self.states: dict[int, State] = {}  # by position: received activations, or those to be sent
        self.gradients: dict[int, Gradients] = {}
        self.weight_work: dict[int, WeightGradientQueue] = {}
        self._to_post = {
            work: [a for a in schedule if a.move is Move.RECV and a.work is work]
            for work in (Work.FORWARD, Work.INPUT_GRADIENT)
        }
        self._ahead = dict.fromkeys(self._to_post, 0)
        for border in engine.borders.values():
            border.start_epoch()
        for work in self._to_post:
            self._post_ahead(work)
        if not engine.topology.is_first:
            self._sort_out_edges()

    def do(self, action: Action) -> None:
        if action.move is Move.RECV:
            if action.work is Work.INPUT_GRADIENT:
                self._sort_out_edges()
            self._receive(action)
        elif action.move is Move.SEND:
            self._send(action)
        elif action.work is Work.FORWARD:
            self._forward(action.position)
        elif action.work is Work.WEIGHT_GRADIENT:
            self.weight_work.pop(action.position).run()
        elif action.work is Work.INPUT_GRADIENT:
            self.weight_work[action.position] = WeightGradientQueue()
            with defer_weight_gradients(self.weight_work[action.position]):
                self._backward(action.position)
        else:
            with add_weight_gradients():
                self._backward(action.position)

    def _sort_out_edges(self) -> None:
        """Fills waiting time: later stages wait for the first slot, the first stage for the first gradient."""
        self.freshness.prepare(self.engine.edge_kinds)

    def _forward(self, position: int) -> None:
        received = self.states.pop(position, ())
        outputs = self.engine.stage.forward(self.order[position], received)
        if self.engine.topology.is_last:
            self.loss = self.loss + outputs[0]
        else:
            self.states[position] = outputs

    def _backward(self, position: int) -> None:
        engine, slot = self.engine, self.order[position]
        gradients = self.gradients.pop(position, None)
        if gradients is None:  # the last stage starts from the loss
            gradients = (torch.ones((), dtype=engine.dtype, device=engine.device),)
        self.gradients[position] = engine.stage.backward(slot, gradients)

    def _send(self, action: Action) -> None:
        channel = self.engine.channels[action.work, Move.SEND]
        if action.work is Work.FORWARD:
            channel.send(self.states.pop(action.position), self.order[action.position])
            self._post_ahead(Work.INPUT_GRADIENT)
            return
        widths = self.engine.widths_in
        rows = self.engine.shard.inward.rows_of(self.order[action.position])
        gradients = self.gradients.pop(action.position)
        shape = rows.stop - rows.start
        channel.send(
            tuple(
                g
                if g is not None
                else torch.zeros(shape, w, dtype=self.engine.dtype, device=self.engine.device)
                for g, w in zip(gradients, widths, strict=True)
            ),
            self.order[action.position],
        )

    def _receive(self, action: Action) -> None:
        engine = self.engine
        slot = self.order[action.position]
        rows = engine.shard.inward.rows_of(slot)
        channel = engine.channels[action.work, Move.RECV]
        received = channel.receive(rows.stop - rows.start, self._widths(action.work), engine.dtype, slot)
        if action.work is Work.FORWARD:
            self.states[action.position] = received
        else:
            self.gradients[action.position] = received
        self._ahead[action.work] -= 1
        self._post_ahead(action.work)

    def _post_ahead(self, work: Work) -> None:
        """In the order of the schedule, as many as may wait, as far as their length is known."""
        while self._to_post[work] and self._ahead[work] < RECEIVES_AHEAD:
            slot = self.order[self._to_post[work][0].position]
            channel = self.engine.channels[work, Move.RECV]
            if not channel.can_post(slot):
                return
            channel.post(self.engine.elements(slot, self._widths(work)), slot)
            self._to_post[work].pop(0)
            self._ahead[work] += 1

    def _widths(self, work: Work) -> tuple[int, ...]:
        return self.engine.widths_in if work is Work.FORWARD else self.engine.widths_out
