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

from gnnpipe_trainer import kernels
from gnnpipe_trainer.pipeline.wire import Channel

SPARE_SHARE, SPARE_NUMBERS = 64, 64  # one number in 64 and 64 more: what changes between two epochs
ALIGNMENT = 8  # bytes: numbers of every format may begin there
BIT_VALUES = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


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
        length, head = _bits_bytes(numbers.numel()), _head_bytes(numbers.numel())
        # Long enough for all of them; only as much as there is room for leaves.
        message = torch.empty(
            head + numbers.numel() * self.wire.itemsize, dtype=torch.uint8, device=self.device
        )
        bits, values = message[:length], message[head:].view(self.wire)
        count, room = pack(numbers, bits, values), self.border.room(slot, numbers.numel())
        message[length:head] = 0
        values[count:room] = 0
        self._hand_over(message[: head + room * self.wire.itemsize])
        if count > room:
            self._hand_over(values[room:count].cpu(), self.control)
        self.border.crossed(slot, bits.clone(), count)

    def post(self, numbers: int, slot: int | None = None) -> None:
        room = self.border.room(slot, numbers)
        self._announce(_head_bytes(numbers) + room * self.wire.itemsize, torch.uint8)

    def _receive_flat(self, numbers: int, dtype: torch.dtype, slot: int | None) -> Tensor:
        message = self._take()
        bits = message[: _bits_bytes(numbers)].clone()
        values = message[_head_bytes(numbers) :].view(self.wire)
        whole = torch.empty(numbers, dtype=dtype, device=self.device)
        count = spread(values, bits, whole)
        if count > values.numel():
            late = torch.empty(count - values.numel(), dtype=self.wire)
            self._wait(dist.irecv(late, self.peer, group=self.control), late)
            spread(torch.cat([values, late.to(self.device)]), bits, whole)
        self.border.crossed(slot, bits, count)
        return whole


class NonZeroGradients(Channel):
    """The backward direction: the bits are known, numbers alone cross."""

    def __init__(self, *ends: Any, border: Border) -> None:
        super().__init__(*ends)
        self.border = border

    def send(self, tensors: tuple[Tensor, ...], slot: int | None = None) -> None:
        numbers = _flat(tensors)
        values = torch.empty(numbers.numel(), dtype=self.wire, device=self.device)
        count = pick(numbers, self.border.take_bits(slot), values)
        self._hand_over(values[:count] if count else values.new_zeros(1))

    def can_post(self, slot: int | None) -> bool:
        """Only once the slot's activations have crossed it is known how many gradients come back."""
        return self.border.has_crossed(slot)

    def post(self, numbers: int, slot: int | None = None) -> None:
        self._announce(max(1, self.border.count(slot)), self.wire)

    def _receive_flat(self, numbers: int, dtype: torch.dtype, slot: int | None) -> Tensor:
        whole = torch.empty(numbers, dtype=dtype, device=self.device)
        spread(self._take(), self.border.take_bits(slot), whole)
        return whole


def pack(numbers: Tensor, bits: Tensor, values: Tensor) -> int:
    """Those of numbers [n] that are not zero, or no number at all, into values [n] of any format, and a bit for each
    number into bits [ceil(n / 8)] uint8. Returns how many values count."""
    if kernels.fits(numbers, values):
        return kernels.pack(numbers, bits, values)
    marks = numbers != 0
    if marks.is_cpu:  # numpy packs and finds them many times as fast as torch does on CPU
        array = marks.numpy()
        bits.copy_(torch.from_numpy(np.packbits(array, bitorder="little")))
        return _pick(numbers, torch.from_numpy(np.flatnonzero(array)), values)
    bits.copy_(_bits_on_device(marks))
    return _pick(numbers, torch.nonzero(marks).flatten(), values)


def pick(numbers: Tensor, bits: Tensor, values: Tensor) -> int:
    """Those whose bits are set; as above."""
    if kernels.fits(numbers, values):
        return kernels.pick(numbers, bits, values)
    return _pick(numbers, places_of(bits, numbers.numel()), values)


def spread(values: Tensor, bits: Tensor, numbers: Tensor) -> int:
    """Writes numbers [n] again, zero where no bit is set. Returns how many values that takes; with fewer, but at least
    one, what is written is of no use."""
    if kernels.fits(values, numbers):
        return kernels.spread(values, bits, numbers)
    places = places_of(bits, numbers.numel())
    given = places[: values.numel()]
    numbers.zero_().index_copy_(0, given, values[: given.numel()].to(numbers.dtype))
    return places.numel()


def places_of(bits: Tensor, numbers: int) -> Tensor:
    """[count] int64: which of so many numbers have their bit set."""
    if not bits.is_cpu:
        return _places_on_device(bits, numbers)
    marks = np.unpackbits(bits.numpy(), count=numbers, bitorder="little").view(np.bool_)
    return torch.from_numpy(np.flatnonzero(marks))


def _pick(numbers: Tensor, places: Tensor, values: Tensor) -> int:
    values[: places.numel()] = numbers.index_select(0, places)
    return places.numel()


def _bits_on_device(marks: Tensor) -> Tensor:
    padded = torch.zeros(_bits_bytes(marks.numel()) * 8, dtype=torch.uint8, device=marks.device)
    padded[: marks.numel()] = marks
    return (padded.view(-1, 8) * BIT_VALUES.to(marks.device)).sum(1, dtype=torch.uint8)


def _places_on_device(bits: Tensor, numbers: int) -> Tensor:
    marks = bits.unsqueeze(1).bitwise_and(BIT_VALUES.to(bits.device)).flatten()[:numbers]
    return torch.nonzero(marks).flatten()


def _bits_bytes(numbers: int) -> int:
    return -(-numbers // 8)


def _head_bytes(numbers: int) -> int:
    """Where in a message, after the bits of so many, the numbers begin."""
    return -(-_bits_bytes(numbers) // ALIGNMENT) * ALIGNMENT


def _flat(tensors: tuple[Tensor, ...]) -> Tensor:
    parts = [t.detach().reshape(-1) for t in tensors]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
