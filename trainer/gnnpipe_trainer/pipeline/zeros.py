"""Borders that zeros do not cross, nor gradients that would arrive at them (`wireZeros: skip`).

After ReLU and dropout at least half of a border's numbers are zero, and backward lets no gradient pass there
(`Block.gradient_stops_at_zeros`). So neither needs to cross: nothing is rounded, nothing is lost, training is the
same bit for bit.

Forward, a message has one bit per number and then the numbers that are not zero; backward, both ends know the bits.
How many numbers there are only their sender knows, but receives are posted ahead and must be as long as what is
sent. So a message has *room* for as many as the same slot had in the epoch before and a few more. The surplus, which
is rare, follows in a message of its own, over the control group: gloo, whose messages wait for nobody's order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gnnpipe_trainer.pipeline.wire import Channel

SPARE_SHARE, SPARE_NUMBERS = 64, 64  # one number in 64 and 64 more: what changes between two epochs
ALIGNMENT = 8  # bytes: numbers of every format may begin there
BIT_VALUES = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)


class Border:
    """What both ends remember of a slot: which of its numbers were not zero, and how many."""

    def __init__(self) -> None:
        self._bits: dict[int | None, Tensor] = {}  # between a slot's forward and its backward
        self._counts: dict[int | None, int] = {}

    def room(self, slot: int | None, numbers: int) -> int:
        """How many numbers a message of this slot has room for; at first all of them."""
        if slot not in self._counts:
            return numbers
        count = self._counts[slot]
        return min(numbers, count + count // SPARE_SHARE + SPARE_NUMBERS)

    def crossed(self, slot: int | None, bits: Tensor, count: int) -> None:
        self._bits[slot], self._counts[slot] = bits, count

    def start_epoch(self) -> None:
        """What an exact pass has left is no slot's of this epoch."""
        self._bits.clear()

    def has_crossed(self, slot: int | None) -> bool:
        return slot in self._bits

    def count(self, slot: int | None) -> int:
        return self._counts[slot]

    def take_bits(self, slot: int | None) -> Tensor:
        return self._bits.pop(slot)


class NonZeroActivations(Channel):
    """The forward direction of such a border."""

    def __init__(self, *ends: Any, border: Border, control: dist.ProcessGroup) -> None:
        super().__init__(*ends)
        self.border, self.control = border, control

    def send(self, tensors: tuple[Tensor, ...], slot: int | None = None) -> None:
        numbers = _flat(tensors)
        bits, places = bits_and_places(numbers)
        values = numbers.index_select(0, places).to(self.wire)
        room = self.border.room(slot, numbers.numel())
        message = torch.zeros(
            _bits_bytes(numbers.numel()) + room * self.wire.itemsize, dtype=torch.uint8, device=self.device
        )
        message[: bits.numel()] = bits
        fitting = values[:room]
        message[_bits_bytes(numbers.numel()) :].view(self.wire)[: fitting.numel()] = fitting
        self._hand_over(message)
        if values.numel() > room:
            self._hand_over(values[room:].cpu(), self.control)
        self.border.crossed(slot, bits, values.numel())

    def post(self, numbers: int, slot: int | None = None) -> None:
        room = self.border.room(slot, numbers)
        self._announce(_bits_bytes(numbers) + room * self.wire.itemsize, torch.uint8)

    def _receive_flat(self, numbers: int, dtype: torch.dtype, slot: int | None) -> Tensor:
        message = self._take()
        bits = message[: -(-numbers // 8)].clone()
        places = places_of(bits, numbers)
        values = message[_bits_bytes(numbers) :].view(self.wire)
        surplus = places.numel() - values.numel()
        if surplus > 0:
            late = torch.empty(surplus, dtype=self.wire)
            self._wait(dist.irecv(late, self.peer, group=self.control), late)
            values = torch.cat([values, late.to(self.device)])
        self.border.crossed(slot, bits, places.numel())
        return _spread(values[: places.numel()], places, numbers, dtype)


class NonZeroGradients(Channel):
    """The backward direction: the bits are known, numbers alone cross."""

    def __init__(self, *ends: Any, border: Border) -> None:
        super().__init__(*ends)
        self.border = border

    def send(self, tensors: tuple[Tensor, ...], slot: int | None = None) -> None:
        numbers = _flat(tensors)
        places = places_of(self.border.take_bits(slot), numbers.numel())
        values = numbers.index_select(0, places).to(self.wire)
        self._hand_over(values if values.numel() else values.new_zeros(1))

    def can_post(self, slot: int | None) -> bool:
        """Only once the slot's activations have crossed it is known how many gradients come back."""
        return self.border.has_crossed(slot)

    def post(self, numbers: int, slot: int | None = None) -> None:
        self._announce(max(1, self.border.count(slot)), self.wire)

    def _receive_flat(self, numbers: int, dtype: torch.dtype, slot: int | None) -> Tensor:
        values = self._take()
        places = places_of(self.border.take_bits(slot), numbers)
        return _spread(values[: places.numel()], places, numbers, dtype)


def bits_and_places(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """[ceil(n / 8)] uint8 with a one for each number that is not zero (so for those that are no number, too), and
    [count] int64 where those are."""
    marks = numbers != 0
    if marks.device.type != "cpu":
        return _bits_on_device(marks), torch.nonzero(marks).flatten()
    # numpy packs and finds them many times as fast as torch does on CPU.
    array = marks.numpy()
    return torch.from_numpy(np.packbits(array)), torch.from_numpy(np.flatnonzero(array))


def places_of(bits: Tensor, numbers: int) -> Tensor:
    """[count] int64: which of so many numbers have their bit set."""
    if bits.device.type != "cpu":
        return _places_on_device(bits, numbers)
    return torch.from_numpy(np.flatnonzero(np.unpackbits(bits.numpy(), count=numbers).view(np.bool_)))


def _bits_on_device(marks: Tensor) -> Tensor:
    padded = torch.zeros(-(-marks.numel() // 8) * 8, dtype=torch.uint8, device=marks.device)
    padded[: marks.numel()] = marks
    return (padded.view(-1, 8) * BIT_VALUES.to(marks.device)).sum(1, dtype=torch.uint8)


def _places_on_device(bits: Tensor, numbers: int) -> Tensor:
    marks = bits.unsqueeze(1).bitwise_and(BIT_VALUES.to(bits.device)).flatten()[:numbers]
    return torch.nonzero(marks).flatten()


def _bits_bytes(numbers: int) -> int:
    """How far the bits of so many numbers reach in a message."""
    return -(-numbers // (8 * ALIGNMENT)) * ALIGNMENT


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    parts = [t.detach().reshape(-1) for t in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _spread(values: Tensor, places: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
    whole = torch.zeros(numbers, dtype=dtype, device=values.device)
    return whole.index_copy_(0, places, values.to(dtype))
