"""This rank's blocks: one slot forward, one slot backward, and exact passes over the whole graph."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from gnnpipe_trainer.models.block import Block, ByHand, FirstTensor, State
from gnnpipe_trainer.models.dense import product
from gnnpipe_trainer.models.loss import loss_and_gradient, loss_sum
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.gather import Gather
from gnnpipe_trainer.pipeline.leaves import Leaves
from gnnpipe_trainer.pipeline.segment import Gradients, HandSegment, Segment
from gnnpipe_trainer.pipeline.shard import Shard


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
        self._segments: dict[int | None, list[Segment | HandSegment]] = {}
        self._hands = [self._hand(index) for index in range(len(gathers) + 1)]
        self._training_rows: dict[int | None, tuple[Tensor, Tensor]] = {}
        self._epoch = 0

    @property
    def blocks(self) -> list[Block]:
        return [gather.block for gather in self.gathers]

    def start_epoch(self, epoch: int, freshness: Freshness) -> None:
        self._epoch = epoch
        for gather in self.gathers:
            gather.start_epoch(freshness)

    @torch.no_grad()
    def forward(self, slot: int | None, received: State) -> State:
        """One slot through all blocks of this stage; the last stage returns its share of the loss."""
        segments: list[Segment | HandSegment] = []
        outputs, leaves, wants_own = received, None, True
        segment: Segment | HandSegment
        for index, hand in enumerate(self._hands):
            self._seed_dropout(slot, self.first_block + index)
            pushed = False
            if hand is None or leaves is None:
                segment, outputs, message = self._by_autograd(index, slot, outputs, leaves)
                wants_own = outputs[0].requires_grad
            else:
                segment = HandSegment(hand, leaves, outputs[0], wants_own)
                outputs, message, pushed = self._by_hand(index, slot, segment)
                wants_own = True
            segments.append(segment)
            if message is not None:
                leaves = self.gathers[index].read(slot, message, pushed)
                if isinstance(segment, HandSegment) and segment.sent_by is None:
                    segment.result = leaves.rows  # the same numbers, where neighbours read them
                    outputs = (leaves.rows,)
        self._segments[slot] = segments
        return tuple([t.detach() for t in outputs])

    @torch.no_grad()
    def backward(self, slot: int | None, gradients: Gradients) -> Gradients:
        """The gradients of what was received, from those of what was sent. Weight gradients collect on the way."""
        message_gradient: Tensor | None = None
        segments = self._segments.pop(slot)
        while segments:
            segment, index = segments.pop(), len(segments)
            if isinstance(segment, HandSegment):
                place = self.gathers[index - 1].gradient_place(slot)
                gradients = segment.backward(gradients, message_gradient, place)
            else:
                if segment.outputs is None:
                    self._seed_dropout(slot, self.first_block + index)
                    with torch.enable_grad():
                        segment.outputs, segment.message = self._run(index, slot, segment)
                gradients = segment.backward(gradients, message_gradient)
            if segment.leaves is not None:
                message_gradient = self.gathers[index - 1].gradient(slot, segment.leaves)
        return gradients

    def _hand(self, index: int) -> ByHand | None:
        """How segment `index` is done by hand, if it can be: its update, and the message or the loss after it."""
        if index == 0 or self.recompute or self.shard.dtype is torch.bfloat16:
            return None
        if index == len(self.gathers):
            can_be = self.decoder is None or isinstance(self.decoder, FirstTensor)
        else:
            after = self.gathers[index].block
            can_be = after.sends_state or after.sent_by is not None
        return self.gathers[index - 1].block.by_hand if can_be else None

    def _by_hand(
        self, index: int, slot: int | None, segment: HandSegment
    ) -> tuple[State, Tensor | None, bool]:
        """What the segment makes: the state or the loss, the message, and whether that is in history already."""
        leaves, by_hand = segment.leaves, segment.by_hand
        assert leaves.gathered is not None
        if index == len(self.gathers):
            segment.result = by_hand.forward(leaves.gathered, segment.own)
            if self.decoder is None:
                return (segment.result,), None, False
            loss, segment.d_result = self._loss_by_hand(slot, segment.result)
            return (loss,), None, False
        gather = self.gathers[index]
        entry, segment.sent_by = gather.entry(slot), gather.block.sent_by
        if segment.sent_by is None:
            message = segment.result = by_hand.forward(leaves.gathered, segment.own, entry)
        else:
            segment.result = by_hand.forward(leaves.gathered, segment.own)
            message = product(segment.result, segment.sent_by.weight, entry=entry)
        return (segment.result,), message, entry is not None and message is entry.served

    def _by_autograd(
        self, index: int, slot: int | None, outputs: State, leaves: Leaves | None
    ) -> tuple[Segment, State, Tensor | None]:
        segment = Segment(tuple([_leaf(t) for t in outputs]), leaves)
        if leaves is not None:
            leaves.track(self.gathers[index - 1].gradient_place(slot))
        if self.recompute:
            return segment, *self._run(index, slot, segment)
        with torch.enable_grad():
            outputs, message = segment.outputs, segment.message = self._run(index, slot, segment)
        return segment, outputs, message

    def _run(self, index: int, slot: int | None, segment: Segment) -> tuple[State, Tensor | None]:
        """Segment `index`: the update of the block before it and the message of the one after it."""
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
        counted, labels = self._counted(slot)
        return loss_sum(_at_least_fp32(logits).index_select(0, counted), labels) / self.train_vertices

    def _loss_by_hand(self, slot: int | None, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A slot's share of the loss, and its gradient [n, C], in the place of the logits: nobody else wants those."""
        counted, labels = self._counted(slot)
        loss, of_counted = loss_and_gradient(logits.index_select(0, counted), labels)
        gradient = logits.zero_().index_copy_(0, counted, of_counted.div_(self.train_vertices))
        return loss / self.train_vertices, gradient

    def _counted(self, slot: int | None) -> tuple[Tensor, Tensor]:
        """The slot's rows that train, and their labels."""
        if slot not in self._training_rows:
            rows = self.shard.inward.rows_of(slot)
            counted = self.shard.masks["train"][rows].nonzero().flatten()
            self._training_rows[slot] = counted, self.shard.labels[rows][counted]
        return self._training_rows[slot]

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
