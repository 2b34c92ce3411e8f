"""Many named tensors as a few long ones, which are copied, written and checked at the speed of memory.

torch.distributed.checkpoint spends a third of a millisecond of Python on each tensor, and training, which shares the
interpreter with the writing thread, would feel that for hundreds of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor

from gnnpipe_trainer.pages import on_pages

HISTORY = "history"  # names that begin so lie in buffers of their own: only the same cut reads them again
GRADIENTS = "gradients"  # and those of history's that end so: they are known later


@dataclass(frozen=True)
class Spot:
    """Where a tensor lies: in which buffer, from which element on."""

    buffer: str
    offset: int
    shape: tuple[int, ...]

    def of(self, buffers: dict[str, Tensor]) -> Tensor:
        flat = buffers[self.buffer].narrow(0, self.offset, prod(self.shape))
        return flat.view(self.shape)


@dataclass(frozen=True)
class Packed:
    """Named tensors, and the long ones on the CPU that they lie in, by kind and dtype."""

    index: dict[str, Spot]
    buffers: dict[str, Tensor]


class Copies:
    """Copies of one rank's tensors on the CPU, in memory that is taken once: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self._packed = Packed({}, {})
        self._views: dict[str, Tensor] = {}

    @torch.no_grad()
    def fill(self, tensors: dict[str, Tensor], non_blocking: bool = False) -> Packed:
        """The copies stay as they are until the next call."""
        if (
            tensors.keys() != self._packed.index.keys()
        ):  # the first time; or an optimizer has begun with more parameters
            self._lay_out(tensors)
        for name, tensor in tensors.items():
            self._views[name].copy_(tensor, non_blocking=non_blocking)
        return self._packed

    def _lay_out(self, tensors: dict[str, Tensor]) -> None:
        index, lengths = _spots(tensors)
        dtypes = {index[name].buffer: tensor.dtype for name, tensor in tensors.items()}
        take = _pinned if any(tensor.is_cuda for tensor in tensors.values()) else on_pages
        self._packed = Packed(index, {name: take(length, dtypes[name]) for name, length in lengths.items()})
        self._views = {name: spot.of(self._packed.buffers) for name, spot in index.items()}


def in_place(tensors: dict[str, Tensor]) -> Packed | None:
    """As one from where they lie, if that is one stretch of the CPU's memory, one after another; else None."""
    run = list(tensors.values())
    index, lengths = _spots(tensors)
    if len(lengths) != 1 or run[0].is_cuda or not all(_follows(*pair) for pair in pairwise(run)):
        return None
    ((buffer, length),) = lengths.items()
    return Packed(index, {buffer: run[0].as_strided((length,), (1,))})


def _spots(tensors: dict[str, Tensor]) -> tuple[dict[str, Spot], dict[str, int]]:
    """One after another, each kind and dtype in a buffer of its own; and the buffers' lengths."""
    index: dict[str, Spot] = {}
    lengths: dict[str, int] = {}
    for name, tensor in tensors.items():
        buffer = _buffer_of(name, tensor)
        offset = lengths.get(buffer, 0)
        index[name] = Spot(buffer, offset, tuple(tensor.shape))
        lengths[buffer] = offset + tensor.numel()
    return index, lengths


def _follows(first: Tensor, second: Tensor) -> bool:
    return (
        first.is_contiguous()
        and second.is_contiguous()
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
        and first.data_ptr() + first.nbytes == second.data_ptr()
    )


def _buffer_of(name: str, tensor: Tensor) -> str:
    kind = "state"
    if name.startswith(f"{HISTORY}."):
        kind = GRADIENTS if name.endswith(f".{GRADIENTS}") else HISTORY
    return f"{kind}.{str(tensor.dtype).removeprefix('torch.')}"


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _pinned(length: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(length, dtype=dtype, pin_memory=True)
