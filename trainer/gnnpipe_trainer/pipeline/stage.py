"""This rank's blocks: one slot forward, one slot backward, and exact passes over the whole graph.

Between two aggregations lies a *segment*: the update of one block and the message of the next. It is the unit of
autograd. Its inputs are leaves, so that backward can stop there, bring gradients across slots and ranks, and go on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnnpipe_trainer.models.block import Block, State
from gnnpipe_trainer.models.loss import loss_sum
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.gather import Gather, Leaves
from gnnpipe_trainer.pipeline.shard import Shard

Gradients = tuple[Tensor | None, ...]


@dataclass
class Segment:
    """What backward needs of one segment of one slot."""

    inputs: State  # leaves
    leaves: Leaves | None  # what the aggregation before it gathered; None for a stage's first segment
    outputs: State | None = None  # or the loss, at the very end; None: to be computed again in backward
    message: Tensor | None = None  # what the aggregation after it publishes; None for a stage's last segment


class Stage:
    """Consecutive blocks, with the encoder on the first stage and the decoder and loss on the last."""

    def __init__(
        self,
        gathers: list[Gather],
        shard: Shard,
        encoder: nn.Module | None,
        decoder: nn.Module | None,
        first_block: int,
        train_vertices: int,
        seed: int,
        recompute: bool = False,
    ) -> None:
        self.gathers, self.shard, self.encoder, self.decoder = gathers, shard, encoder, decoder
        self.first_block, self.train_vertices, self.seed = first_block, train_vertices, seed
        self.recompute = recompute  # keep only what segments start from: less memory, more time
        self._segments: dict[int | None, list[Segment]] = {}
        self._epoch = 0

    @property
    def blocks(self) -> list[Block]:
        return [gather.block for gather in self.gathers]

    def start_epoch(self, epoch: int, freshness: Freshness) -> None:
        self._epoch = epoch
        for gather in self.gathers:
            gather.start_epoch(freshness)

    def forward(self, slot: int | None, received: State) -> State:
        """One slot through all blocks of this stage; the last stage returns its share of the loss."""
        segments: list[Segment] = []
        outputs, leaves = received, None
        for index in range(len(self.gathers) + 1):
            segment = Segment(tuple(_leaf(t) for t in outputs), leaves)
            with torch.set_grad_enabled(not self.recompute):
                outputs, message = self._run(index, slot, segment)
            if not self.recompute:
                segment.outputs, segment.message = outputs, message
            segments.append(segment)
            if message is not None:
                leaves = self.gathers[index].read(slot, message.detach())
        self._segments[slot] = segments
        return tuple(t.detach() for t in outputs)

    def backward(self, slot: int | None, gradients: Gradients) -> Gradients:
        """The gradients of what was received, from those of what was sent. Weight gradients collect on the way."""
        message_gradient: Tensor | None = None
        segments = self._segments.pop(slot)
        while segments:
            segment = segments.pop()
            if segment.outputs is None:
                segment.outputs, segment.message = self._run(len(segments), slot, segment)
            _backward(segment, gradients, message_gradient)
            gradients = tuple(t.grad for t in segment.inputs)
            if segment.leaves is not None:
                message_gradient = self.gathers[len(segments) - 1].gradient(slot, segment.leaves)
        return gradients

    def _run(self, index: int, slot: int | None, segment: Segment) -> tuple[State, Tensor | None]:
        """Segment `index`: the update of the block before it and the message of the one after it."""
        self._seed_dropout(slot, self.first_block + index)
        with self._precision():
            if segment.leaves is None:
                outputs = self._encode(slot, segment.inputs)
            else:
                outputs = self.gathers[index - 1].apply(slot, segment.leaves, segment.inputs)
            if index < len(self.gathers):
                return outputs, self.gathers[index].block.message(outputs).to(self.shard.dtype)
            if self.decoder is not None:
                outputs = (self._loss(slot, self.decoder(outputs)),)
            return outputs, None

    def _precision(self) -> AbstractContextManager[object]:
        """bf16: weights stay fp32, what torch deems safe is computed in bf16. Else everything has one type."""
        if self.shard.dtype is not torch.bfloat16:
            return nullcontext()
        return torch.autocast(self.shard.device.type, torch.bfloat16)

    @torch.no_grad()
    def exact_forward(self, received: State, fill_history: bool = False) -> State:
        """The whole graph through all blocks, layer by layer; the last stage returns the logits."""
        with self._precision():
            state = self._encode(None, received)
            for gather in self.gathers:
                message = gather.block.message(state).to(self.shard.dtype)
                state = gather.apply(None, gather.read_exact(message, fill_history), state)
            return state if self.decoder is None else (self.decoder(state),)

    def end_epoch(self) -> None:
        for gather in self.gathers:
            if gather.history is not None:
                gather.history.end_epoch()

    def forget_gradients(self) -> None:
        """Those of the epoch before belong to another cut, or to weights that are given up."""
        for gather in self.gathers:
            if gather.kept_gradients is not None:
                gather.kept_gradients.zero_()

    def _encode(self, slot: int | None, inputs: State) -> State:
        if self.encoder is None:
            return inputs
        encoded: State = self.encoder(self.shard.features[self.shard.inward.rows_of(slot)])
        return encoded

    def _loss(self, slot: int | None, logits: Tensor) -> Tensor:
        rows = self.shard.inward.rows_of(slot)
        mask = self.shard.masks["train"][rows]
        return loss_sum(_at_least_fp32(logits), self.shard.labels[rows], mask) / self.train_vertices

    def _seed_dropout(self, slot: int | None, block: int) -> None:
        """Random numbers depend on the epoch, the block and the slot only: a resumed run draws the same ones."""
        key = hash((self.seed, self._epoch, block, 0 if slot is None else slot + 1, self.shard.way))
        generator = torch.default_generator
        if self.shard.device.type == "cuda":
            generator = torch.cuda.default_generators[self.shard.device.index]
        generator.manual_seed(key & 0x7FFF_FFFF_FFFF_FFFF)


def _at_least_fp32(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype is torch.bfloat16 else logits


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _backward(segment: Segment, gradients: Gradients, message_gradient: Tensor | None) -> None:
    assert segment.outputs is not None
    if segment.message is segment.outputs[0] and message_gradient is not None and gradients[0] is not None:
        gradients, message_gradient = (message_gradient.add_(gradients[0]), *gradients[1:]), None
    roots = list(zip((*segment.outputs, segment.message), (*gradients, message_gradient), strict=True))
    live = [(t, g.to(t.dtype)) for t, g in roots if t is not None and g is not None and t.requires_grad]
    if live:
        torch.autograd.backward([t for t, _ in live], [g for _, g in live])
