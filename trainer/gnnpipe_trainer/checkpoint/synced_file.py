"""Large files that go past the page cache: their bytes are copied by the disk, not by the CPU that trains."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

BLOCK_BYTES = 4096  # direct writes begin and end at multiples of it, in memory and on disk
PIECE_BYTES = 4 << 20  # a checksum is taken of what is still in the processor's cache

Moved = Callable[[memoryview], memoryview]


def stays(rest: memoryview) -> memoryview:
    """What is written from where it lies."""
    return rest


def write_synced(path: Path, content: memoryview, moved: Moved = stays) -> str:
    """Write a file, over an old one if there is one, and wait until it is on the disk; returns its checksum
    (folder.digest).

    `moved` says before each piece where the rest of the content lies by now, and learns at the end that none is left.
    """
    known = xxhash.xxh3_128()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.truncate(descriptor, len(content))  # so that no write has to make it longer
        direct = _lies_on_a_block(content) and _go_direct(descriptor)
        rest, offset = moved(content), 0
        while rest:
            piece = rest[:PIECE_BYTES]
            if direct and len(piece) % BLOCK_BYTES:
                direct = _go_through_cache(descriptor)
            known.update(piece)
            _write_all(descriptor, piece, offset)
            rest, offset = moved(rest[PIECE_BYTES:]), offset + len(piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return known.hexdigest()


def _write_all(descriptor: int, piece: memoryview, offset: int) -> None:
    while piece:
        try:
            written = os.pwrite(descriptor, piece, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not _is_direct(descriptor):
                raise
            _go_through_cache(descriptor)  # what lies below wants larger blocks
            continue
        piece, offset = piece[written:], offset + written
        if written % BLOCK_BYTES:  # a disk that is nearly full took a part of it
            _go_through_cache(descriptor)


def _lies_on_a_block(content: memoryview) -> bool:
    return np.frombuffer(content, dtype=np.uint8).ctypes.data % BLOCK_BYTES == 0


def _go_direct(descriptor: int) -> bool:
    """Whether it does: file systems in memory and some on the network do not."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_DIRECT)
    except OSError:
        return False
    return True


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def _go_through_cache(descriptor: int) -> bool:
    """False: it is direct no longer."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    return False
