"""The few loops that are ours, in C, for fp32 on CPUs: where torch has none that is as quick.

They are compiled when GNNPipe is installed. On a machine without a compiler nothing `fits`, and torch does the same,
more slowly and with other last digits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

LANES = 16  # floats in a register: the narrowest rows that are worth it
WIDE = 4  # of dense.c

Rows = tuple[int, int]  # from, to


class Entry(NamedTuple):
    """Where a slot's rows [n, d] lie in history, and how fresh ones enter it: following = lerp(served, fresh, share),
    then served = fresh.

    The squares of (fresh - served) and of fresh, of each `stride`th row, are added to drift [2] fp64; 0: of none.
    """

    served: Tensor
    following: Tensor
    share: float
    stride: int
    drift: Tensor


def fits(*tensors: Tensor) -> bool:
    """Whether our loops take them."""
    for tensor in tensors:  # no generator: this is asked some times for each chunk and layer
        if tensor.dtype is not torch.float32 or not tensor.is_cpu or not tensor.is_contiguous():
            return False
    return _loops is not None


def weighted_sum(csr: tuple[int, int, int], source: Tensor, out: Tensor, shares: Sequence[Rows]) -> None:
    """out [rows, d] = a sparse matrix x source [n, d], d >= LANES; each thread takes a share of the rows.

    `csr` are the addresses of its offsets [rows + 1] int32, columns [entries] int32 and weights [entries]. It rounds as
    torch.embedding_bag does.
    """
    loops = _compiled()
    fixed, width = (*csr, source.data_ptr(), out.data_ptr()), source.shape[1]
    if len(shares) == 1:
        loops.gnnpipe_weighted_sum(*fixed, *shares[0], width)
    else:
        _together([partial(loops.gnnpipe_weighted_sum, *fixed, *rows, width) for rows in shares])


def fresh_entries(
    csr: tuple[int, int, int],
    positions: Tensor,
    position: int,
    offsets: Tensor,
    columns: Tensor,
    weights: Tensor,
) -> int:
    """Copies a sparse matrix's entries whose columns stand at `position` or after it; returns how many they are.

    `csr` as above, positions [n] int32 of the columns; offsets [rows + 1], columns and weights [entries] are written.
    """
    places = offsets.data_ptr(), columns.data_ptr(), weights.data_ptr()
    loop, rows = _compiled().gnnpipe_fresh_entries, offsets.numel() - 1
    count: int = loop(*csr, positions.data_ptr(), position, rows, *places)
    return count


def blend(entry: Entry, fresh: Tensor) -> None:
    """Fresh rows enter history. It rounds as torch.lerp does for a share below one half."""
    served, following, share, stride, drift = entry
    starts = served.data_ptr(), fresh.data_ptr(), following.data_ptr()
    _compiled().gnnpipe_blend(*starts, *fresh.shape, share, stride, drift.data_ptr())


def pack(numbers: Tensor, bits: Tensor, values: Tensor) -> int:
    """Those of numbers [n] that are not zero, and a bit for each of them: into values [n] and bits [ceil(n / 8)] uint8,
    the first number's in the lowest. Returns how many values count."""
    given = numbers.data_ptr(), numbers.numel()
    count: int = _compiled().gnnpipe_pack(*given, bits.data_ptr(), values.data_ptr(), _wide > 1)
    return count


def pick(numbers: Tensor, bits: Tensor, values: Tensor) -> int:
    """Those whose bits are set; as above."""
    given = numbers.data_ptr(), numbers.numel()
    count: int = _compiled().gnnpipe_pick(*given, bits.data_ptr(), values.data_ptr(), _wide > 1)
    return count


def spread(values: Tensor, bits: Tensor, numbers: Tensor) -> int:
    """Writes numbers [n] again. Returns how many values that takes: if fewer are given, but at least one, what is
    written is wrong."""
    given = values.data_ptr(), values.numel(), bits.data_ptr()
    count: int = _compiled().gnnpipe_spread(*given, numbers.data_ptr(), numbers.numel(), _wide > 1)
    return count


def product(
    out: Tensor, x: Tensor, matrix: Tensor, bias: Tensor | None, relu: bool, adds: bool = False
) -> None:
    """out [n, columns] = x [n, depth] matrix [depth, columns] + bias, or + out if it adds, ReLU of it if asked for.

    The matrix may be transposed. Each thread takes a part of the rows.
    """
    loop, (rows, depth), columns = _compiled().gnnpipe_product, x.shape, matrix.shape[1]
    right, sizes = (matrix.data_ptr(), _address(bias)), (depth, columns, *matrix.stride(), adds, relu, _wide)
    start, to = x.data_ptr(), out.data_ptr()
    if torch.get_num_threads() == 1:
        loop(start, *right, to, rows, *sizes)
        return
    _together(
        [
            partial(loop, start + 4 * first * depth, *right, to + 4 * first * columns, last - first, *sizes)
            for first, last in _parts(rows)
        ]
    )


def product_to_history(
    entry: Entry, x: Tensor, matrix: Tensor, bias: Tensor | None, before: Tensor | None, relu: bool
) -> None:
    """`product`, its result pushed into history as it is made; it adds to `before` [n, columns] if that is given."""
    if torch.get_num_threads() > 1:  # who would each have to measure the drift of their own rows
        fresh = torch.empty_like(entry.served) if before is None else before
        product(fresh, x, matrix, bias, relu, adds=before is not None)
        blend(entry, fresh)
        return
    served, following, share, stride, drift = entry
    loop, (rows, depth) = _compiled().gnnpipe_product_to_history, x.shape
    made_of = x.data_ptr(), matrix.data_ptr(), _address(bias), _address(before)
    sizes = rows, depth, matrix.shape[1], *matrix.stride(), relu, _wide
    loop(*made_of, *sizes, served.data_ptr(), following.data_ptr(), share, stride, drift.data_ptr())


def gradients(
    dy: Tensor,
    y: Tensor | None,
    x: Tensor,
    matrix: Tensor | None,
    dx: Tensor | None,
    dw: Tensor | None,
    db: Tensor | None,
    scale: float,
    share: float,
) -> None:
    """Of a dense layer: dx = dy matrix, dw += share dy^T x, db += dy's rows, each if given. What ReLU and dropout made,
    y, if given, stops dy where it is zero, and scales it elsewhere.

    dy, y [n, outputs], matrix, dw [outputs, inputs], x, dx [n, inputs], db [outputs]. One pass does it all; several
    threads first share the rows of dx, then those of dw.
    """
    loop, (rows, outputs), inputs = _compiled().gnnpipe_gradients, dy.shape, x.shape[1]
    starts = dy.data_ptr(), _address(y)
    made = _address(matrix), x.data_ptr(), _address(dx)
    sums = _address(dw), _address(db)
    if torch.get_num_threads() == 1:
        loop(*starts, *made, *sums, rows, outputs, inputs, scale, share, 0, outputs, _wide)
        return
    work = []
    for first, last in _parts(rows) if dx is not None else []:
        mine = [start and start + 4 * first * outputs for start in starts]
        place = made[0], 0, made[2] + 4 * first * inputs
        work.append(
            partial(loop, *mine, *place, 0, 0, last - first, outputs, inputs, scale, share, 0, 0, _wide)
        )
    for first, last in _parts(outputs) if any(sums) else []:
        mine = [sums[0], sums[1] if last == outputs else 0]
        work.append(
            partial(
                loop, *starts, 0, made[1], 0, *mine, rows, outputs, inputs, scale, share, first, last, _wide
            )
        )
    _together(work)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _parts(count: int) -> list[Rows]:
    """One for each of this rank's threads, or fewer: none is empty but for a single one."""
    threads = max(1, min(count, torch.get_num_threads()))
    return list(pairwise(count * thread // threads for thread in range(threads + 1)))


def _together(work: Sequence[Callable[[], object]]) -> None:
    """The first in this thread, the others in threads of their own: our loops let Python go on meanwhile."""
    first, *others = work
    waiting = [_threads(os.getpid(), len(others)).submit(other) for other in others]
    first()
    for other in waiting:
        other.result()


def _compiled() -> ctypes.CDLL:
    assert _loops is not None  # or nothing fits
    return _loops


@cache
def _threads(process: int, count: int) -> ThreadPoolExecutor:
    """Of this process: a fork has none of its parent's threads."""
    return ThreadPoolExecutor(count, thread_name_prefix="loops")


def _load() -> ctypes.CDLL | None:
    """None where they are not compiled, or not for such a processor: there torch's own are quicker."""
    if not _capability.startswith("AVX"):
        return None
    places = [Path(__file__).with_name(f"_loops{suffix}") for suffix in EXTENSION_SUFFIXES]
    compiled = next((place for place in places if place.exists()), None)
    if compiled is None:
        return None
    library = ctypes.CDLL(str(compiled))
    address, count, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    library.gnnpipe_weighted_sum.argtypes = [*[address] * 5, *[count] * 3]
    library.gnnpipe_blend.argtypes = [*[address] * 3, count, count, number, count, address]
    library.gnnpipe_product.argtypes = [*[address] * 4, *[count] * 8]
    library.gnnpipe_product_to_history.argtypes = [
        *[address] * 4,
        *[count] * 7,
        address,
        address,
        number,
        count,
        address,
    ]
    library.gnnpipe_gradients.argtypes = [*[address] * 7, *[count] * 3, number, number, *[count] * 3]
    library.gnnpipe_fresh_entries.argtypes = [*[address] * 4, count, count, *[address] * 3]
    library.gnnpipe_fresh_entries.restype = count
    library.gnnpipe_pack.argtypes = library.gnnpipe_pick.argtypes = [address, count, address, address, count]
    library.gnnpipe_spread.argtypes = [address, count, address, address, count, count]
    for counts in (library.gnnpipe_pack, library.gnnpipe_pick, library.gnnpipe_spread):
        counts.restype = count
    library.gnnpipe_weighted_sum.restype = library.gnnpipe_blend.restype = None
    for loop in (library.gnnpipe_product, library.gnnpipe_product_to_history, library.gnnpipe_gradients):
        loop.restype = _worked
    return library


def _worked(answer: int) -> None:
    if not answer:
        raise MemoryError("no memory for a block of a dense layer")


_capability = torch.backends.cpu.get_cpu_capability()
_loops = _load()
_wide = WIDE if _capability.startswith("AVX512") else 1
