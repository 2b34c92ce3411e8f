"""One rank's named tensors as a part of a checkpoint, by torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gnnpipe_trainer.checkpoint.folder import Checkpoint, Damaged
from gnnpipe_trainer.checkpoint.packed import Packed
from gnnpipe_trainer.checkpoint.storage import PlainReader, PlainWriter


def write_part(folder: Path, part: str, packed: Packed) -> dict[str, str]:
    """Write one rank's tensors; returns the checksum of each file, by its path inside the folder."""
    writer = PlainWriter(folder / part, packed.index)
    with _on_its_own():
        save(dict(packed.buffers), storage_writer=writer, no_dist=True)
    return {f"{part}/{name}": checksum for name, checksum in sorted(writer.checksums.items())}


def load_tensors(checkpoint: Checkpoint, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The wanted tensors by name, whichever ranks wrote them, on the CPU. Damaged if they are not to be had."""
    loaded: dict[str, Tensor] = {}
    for part in sorted({Path(name).parts[0] for name in checkpoint.content["files"]}):
        try:
            loaded |= _load_part(checkpoint.folder / part, wanted)
        except Damaged:
            raise
        except (Exception, CheckpointException) as error:  # torch's is no Exception
            raise Damaged(f"{part} cannot be read: {type(error).__name__}") from error
    return loaded


def _load_part(part: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    reader = PlainReader(part)
    spots = {name: spot for name, spot in reader.index.items() if wanted(name)}
    about = {spot.buffer: reader.buffers[spot.buffer] for spot in spots.values()}
    buffers = {name: torch.empty(it.size, dtype=it.properties.dtype) for name, it in about.items()}
    if buffers:
        with _on_its_own():
            load(buffers, storage_reader=reader, no_dist=True)
    return {name: spot.of(buffers) for name, spot in spots.items()}


@contextmanager
def _on_its_own() -> Iterator[None]:
    """No process group takes part, which torch warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
