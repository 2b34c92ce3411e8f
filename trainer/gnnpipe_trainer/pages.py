"""Memory that large files are written from directly."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch
from torch import Tensor


def on_pages(length: int, dtype: torch.dtype) -> Tensor:
    """Zeros [length] that begin on a page, as files that are written directly want it, and lie on huge ones."""
    if length == 0:
        return torch.empty(0, dtype=dtype)
    pages = mmap.mmap(-1, length * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype)
