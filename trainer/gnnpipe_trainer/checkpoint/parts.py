"""One rank's named tensors as a part of a checkpoint, by torch.distributed.checkpoint."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load

from gnnpipe_trainer.checkpoint.folder import Checkpoint, Damaged
from gnnpipe_trainer.checkpoint.packed import Packed
from gnnpipe_trainer.checkpoint.storage import PlainReader, PlainWriter
from gnnpipe_trainer.checkpoint.synced_file import Moved, stays


class Part:
    """One rank's tensors on their way to disk: some now, some later, `finish` or `remove` at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._writer = PlainWriter(folder / name)
        self._about: dict[str, TensorStorageMetadata] = {}

    def write(self, packed: Packed, moved: Moved = stays) -> None:
        plan, about = _planned(tuple((name, it.dtype, it.numel()) for name, it in packed.buffers.items()))
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(packed.buffers), is_coordinator=True)
        self._writer.set_up_storage_writer(is_coordinator=True)
        self._writer.moved = moved
        self._writer.write_data(plan, planner).wait()
        self._writer.index |= packed.index
        self._about |= about

    def finish(self) -> None:
        self._writer.finish(Metadata(dict(self._about)), [])

    @property
    def checksums(self) -> dict[str, str]:
        """Of each file, by its path inside the checkpoint's folder."""
        return {f"{self.name}/{file}": checksum for file, checksum in sorted(self._writer.checksums.items())}

    def remove(self) -> None:
        """It is not wanted after all. The last rank to say so takes the folder with it."""
        shutil.rmtree(self._writer.folder, ignore_errors=True)
        with suppress(OSError):
            self._writer.folder.parent.rmdir()


@lru_cache(maxsize=8)
def _planned(
    layout: tuple[tuple[str, torch.dtype, int], ...],
) -> tuple[SavePlan, dict[str, TensorStorageMetadata]]:
    """torch.distributed.checkpoint's plan for such buffers: made once, it takes longer than to carry it out."""
    planner = DefaultSavePlanner()
    shapes = {name: torch.empty(length, dtype=dtype, device="meta") for name, dtype, length in layout}
    planner.set_up_planner(shapes, is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    about = metadata.state_dict_metadata
    tensors = {name: it for name, it in about.items() if isinstance(it, TensorStorageMetadata)}
    return planner.finish_plan(plans[0]), tensors


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
