"""One rank's named tensors as a part of a checkpoint: torch.distributed.checkpoint's files, and an index of names."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.serialization import get_crc32_options, set_crc32_options

from gnnpipe_trainer.checkpoint.folder import Checkpoint, Damaged, digest
from gnnpipe_trainer.checkpoint.packed import Packed, Spot
from gnnpipe_trainer.checkpoint.reader import CarefulReader

INDEX = "index.json"  # where each name lies in the part's buffers


def write_part(folder: Path, part: str, packed: Packed) -> dict[str, str]:
    """Write one rank's tensors; returns the checksum of each file, by its path inside the folder."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    index = {name: asdict(spot) for name, spot in packed.index.items()}
    (folder / part / INDEX).write_text(json.dumps(index))
    with _on_its_own():
        save(dict(packed.buffers), storage_writer=FileSystemWriter(folder / part), no_dist=True)
    return {str(file.relative_to(folder)): digest(file) for file in sorted((folder / part).iterdir())}


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
    spots = {name: spot for name, spot in _index(part).items() if wanted(name)}
    buffers = _load_buffers(part, {spot.buffer for spot in spots.values()})
    return {name: spot.of(buffers) for name, spot in spots.items()}


def _index(part: Path) -> dict[str, Spot]:
    known = json.loads((part / INDEX).read_text())
    return {name: Spot(spot["buffer"], spot["offset"], tuple(spot["shape"])) for name, spot in known.items()}


def _load_buffers(part: Path, names: set[str]) -> dict[str, Tensor]:
    if not names:
        return {}
    reader = CarefulReader(part)
    known = reader.read_metadata().state_dict_metadata
    buffers: dict[str, Tensor] = {}
    for name in names:
        about = known.get(name)
        if not isinstance(about, TensorStorageMetadata):
            raise Damaged(f"{part.name} holds no {name}")
        buffers[name] = torch.empty(about.size, dtype=about.properties.dtype)
    with _on_its_own():
        load(buffers, storage_reader=reader, no_dist=True)
    return buffers


@contextmanager
def _on_its_own() -> Iterator[None]:
    """No process group takes part, which torch warns of; and its CRC32 of each record repeats our checksums."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        set_crc32_options(before)
