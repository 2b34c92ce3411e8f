"""Many named tensors as a few long ones, which are copied, written and checked at the speed of memory.

torch.distributed.checkpoint spends a third of a millisecond of Python on each tensor, and training, which shares the
interpreter with the writing thread, would feel that for hundreds of them.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]  # where to, and what

HISTORY = "history"  # names that begin so lie in buffers of their own: only the same cut reads them again


@dataclass(frozen=True)
class Spot:
    """Where a tensor lies: in which buffer, from which element on."""

    buffer: str
    offset: int
    shape: tuple[int, ...]

    def of(self, buffers: dict[str, Tensor]) -> Tensor:
        flat = buffers[self.buffer].narrow(0, self.offset, prod(self.shape))
        return flat.view(self.shape)


class Packed:
    """Copies of one rank's tensors on the CPU, in memory that is taken once: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self.index: dict[str, Spot] = {}
        self.buffers: dict[str, Tensor] = {}  # by kind and dtype
        self._views: dict[str, Tensor] = {}

    @torch.no_grad()
    def fill(self, tensors: dict[str, Tensor]) -> Packed:
        """The copies stay as they are until the next call."""
        if (
            tensors.keys() != self.index.keys()
        ):  # the first time; or an optimizer has begun with more parameters
            self._lay_out(tensors)
        for run in _runs((self._views[name], tensor) for name, tensor in tensors.items()):
            _copy(run)
        return self

    def _lay_out(self, tensors: dict[str, Tensor]) -> None:
        self.index = {}
        lengths: dict[str, int] = {}
        for name, tensor in tensors.items():
            buffer = _buffer_of(name, tensor)
            offset = lengths.get(buffer, 0)
            self.index[name] = Spot(buffer, offset, tuple(tensor.shape))
            lengths[buffer] = offset + tensor.numel()
        dtypes = {_buffer_of(name, tensor): tensor.dtype for name, tensor in tensors.items()}
        take = _pinned if any(tensor.is_cuda for tensor in tensors.values()) else _on_pages
        self.buffers = {name: take(length, dtypes[name]) for name, length in lengths.items()}
        self._views = {name: spot.of(self.buffers) for name, spot in self.index.items()}


def _runs(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Copies in a row whose sources lie side by side in memory, and their places too."""
    run: list[Pair] = []
    for pair in pairs:
        if run and not all(_follows(*each) for each in zip(run[-1], pair, strict=True)):
            yield run
            run = []
        run.append(pair)
    if run:
        yield run


def _follows(first: Tensor, second: Tensor) -> bool:
    return (
        first.is_contiguous()
        and second.is_contiguous()
        and first.device == second.device
        and first.dtype == second.dtype
        and first.data_ptr() + first.nbytes == second.data_ptr()
    )


def _copy(run: list[Pair]) -> None:
    """A long stretch in one go, which goes past the processor's caches: in half the time, and training keeps them."""
    if len(run) > 1 and run[0][1].device.type == "cpu" and torch.get_num_threads() == 1:
        to, source = (tensor.data_ptr() for tensor in run[0])
        ctypes.memmove(to, source, sum(tensor.nbytes for _, tensor in run))
        return
    for to_tensor, tensor in run:
        to_tensor.copy_(tensor)


def _buffer_of(name: str, tensor: Tensor) -> str:
    kind = HISTORY if name.startswith(f"{HISTORY}.") else "state"
    return f"{kind}.{str(tensor.dtype).removeprefix('torch.')}"


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _pinned(length: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(length, dtype=dtype, pin_memory=True)


def _on_pages(length: int, dtype: torch.dtype) -> Tensor:
    """Memory that begins on a page, as files that are written directly want it, and lies on huge ones."""
    if length == 0:
        return torch.empty(0, dtype=dtype)
    pages = mmap.mmap(-1, length * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype)
