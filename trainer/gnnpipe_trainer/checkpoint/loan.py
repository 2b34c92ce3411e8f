"""History on loan to a checkpoint, which is written from where it lies while training goes on.

Training does not write to it between the end of one forward and the beginning of the next. By then it is on disk, or
the writing thread is told, copies what is left, and goes on from there: a slow disk costs memory, not time.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from gnnpipe_trainer.checkpoint.packed import Copies, Packed, bytes_of, in_place
from gnnpipe_trainer.pages import on_pages


class Loan:
    """The writing thread reads what has `arrived`, asks where it has `moved`, and says when it is `done`."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self._wanted, self._free = threading.Event(), threading.Event()

    def give_back(self) -> None:
        """Training: wait until nobody reads it any more; never longer than for a piece of a file and a copy."""
        self._wanted.set()
        self._free.wait()

    def arrived(self) -> Packed:
        """Once it is there to be read."""
        return self._packed

    def moved(self, rest: memoryview) -> memoryview:
        """Between two pieces of the file: where what is left of it lies from now on."""
        if self._free.is_set() or (rest and not self._wanted.is_set()):
            return rest
        copy = bytes_of(on_pages(len(rest), torch.uint8))
        np.copyto(np.frombuffer(copy, np.uint8), np.frombuffer(rest, np.uint8))
        self.done()
        return copy

    def done(self) -> None:
        """It is not read any more."""
        self._free.set()


class Fetched(Loan):
    """Where it does not lie in one stretch of the CPU's memory, a copy is written: a GPU makes it beside training."""

    def __init__(self, tensors: dict[str, Tensor], copies: Copies) -> None:
        self._copied: torch.cuda.Event | None = None
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        if device.type != "cuda":
            super().__init__(copies.fill(tensors))
            return
        beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(device))  # forward has to have written it
        with torch.cuda.stream(beside):
            super().__init__(copies.fill(tensors, non_blocking=True))
        self._copied = beside.record_event()

    def give_back(self) -> None:
        """The GPU waits, not the CPU."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def arrived(self) -> Packed:
        if self._copied is not None:
            self._copied.synchronize()
        return self._packed

    def moved(self, rest: memoryview) -> memoryview:
        return rest


def lend(tensors: dict[str, Tensor], copies: Copies) -> Loan:
    """`copies` are used where they cannot be written from where they lie."""
    packed = in_place(tensors)
    return Fetched(tensors, copies) if packed is None else Loan(packed)
