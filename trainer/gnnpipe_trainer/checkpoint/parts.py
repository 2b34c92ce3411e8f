"""One rank's named tensors as a part of a checkpoint, through torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gnnpipe_trainer.checkpoint.folder import Checkpoint, digest


def write_part(folder: Path, part: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    """Write one rank's tensors; returns the checksum of each file, by its path inside the folder."""
    (folder / part).mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that no process group takes part is meant so: ranks write on their own
        save(dict(tensors), storage_writer=FileSystemWriter(folder / part), no_dist=True)
    return {str(file.relative_to(folder)): digest(file) for file in sorted((folder / part).iterdir())}


def load_tensors(checkpoint: Checkpoint, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """The wanted tensors by name, whichever ranks wrote them, on the CPU."""
    loaded: dict[str, Tensor] = {}
    for reader, names in _parts(checkpoint):
        tensors = {
            name: torch.empty(known.size, dtype=known.properties.dtype)
            for name, known in names.items()
            if wanted(name)
        }
        if tensors:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as in write_part
                load(tensors, storage_reader=reader, no_dist=True)
            loaded.update(tensors)
    return loaded


def _parts(checkpoint: Checkpoint) -> Iterator[tuple[FileSystemReader, dict[str, TensorStorageMetadata]]]:
    for part in sorted({Path(name).parts[0] for name in checkpoint.content["files"]}):
        reader = FileSystemReader(checkpoint.folder / part)
        known = reader.read_metadata().state_dict_metadata
        yield reader, {n: m for n, m in known.items() if isinstance(m, TensorStorageMetadata)}
