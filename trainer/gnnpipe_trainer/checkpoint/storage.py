"""torch.distributed.checkpoint's storage as plain files: the bytes of each tensor, and index.json, which names them.

Its own writer pickles tensors into archives and leaves them to the page cache: every byte is copied, read back for its
checksum, copied out by the kernel and thrown away with the old checkpoint, and training pays for it. Here a byte is
read once, for its checksum, on its way to the disk. And nothing in a checkpoint is a pickle.
"""

from __future__ import annotations

import json
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from gnnpipe_trainer.checkpoint.folder import Damaged, take_spare
from gnnpipe_trainer.checkpoint.packed import Spot, bytes_of
from gnnpipe_trainer.checkpoint.synced_file import Moved, stays, write_synced

INDEX = "index.json"


class PlainWriter(StorageWriter):
    """Writes one part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index: dict[str, Spot] = {}  # where in its tensors the named ones lie, for whoever reads them
        self.moved: Moved = stays  # of the tensors of the plan at hand
        self.checksums: dict[str, str] = {}  # of each file that was written

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)  # parts hold nothing else
            self._write(file_of(item.index.fqn), bytes_of(tensor), self.moved)
            results.append(WriteResult(item.index, tensor.nbytes, None))
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Of a spare part whose files were written over, none that have no successor stay."""
        buffers = {
            name: {"dtype": str(about.properties.dtype).removeprefix("torch."), "size": list(about.size)}
            for name, about in metadata.state_dict_metadata.items()
            if isinstance(about, TensorStorageMetadata)
        }
        tensors = {name: vars(spot) for name, spot in self.index.items()}
        text = json.dumps({"buffers": buffers, "tensors": tensors})
        self._write(INDEX, memoryview(text.encode()))
        for file in self.folder.iterdir():
            if file.name not in self.checksums:
                file.unlink()

    def _write(self, name: str, content: memoryview, moved: Moved = stays) -> None:
        self.checksums[name] = write_synced(self.folder / name, content, moved)

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        self.checksums = {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not self.folder.is_dir():
            take_spare(self.folder)
        self.folder.mkdir(exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return True


class PlainReader(StorageReader):
    """Reads one part. Whatever is wrong with its files is Damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        known = json.loads((folder / INDEX).read_text())
        self.buffers = {name: _described(about) for name, about in known["buffers"].items()}
        self.index = {
            name: Spot(spot["buffer"], spot["offset"], tuple(spot["shape"]))
            for name, spot in known["tensors"].items()
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(dict(self.buffers))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            saved = self._mapped(item.storage_index.fqn)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                saved = saved.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(saved)
            planner.commit_tensor(item, target)
        return _done(None)

    def _mapped(self, name: str) -> Tensor:
        """The tensor as it lies in its file, read when it is looked at."""
        about, file = self.buffers[name], self.folder / file_of(name)
        dtype, elements = about.properties.dtype, prod(about.size)
        if file.stat().st_size != elements * dtype.itemsize:  # beyond its end a map is a crash
            raise Damaged(f"{file.name} does not have the {elements} elements that {INDEX} says")
        if elements == 0:
            return torch.empty(about.size, dtype=dtype)
        return torch.from_file(str(file), shared=False, size=elements, dtype=dtype).view(about.size)

    def reset(self, checkpoint_id: str | PathLike[str] | None = None) -> None:
        pass

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | PathLike[str]) -> bool:
        return True


def file_of(buffer: str) -> str:
    return f"{buffer}.bin"


def _described(about: dict[str, Any]) -> TensorStorageMetadata:
    dtype, size = getattr(torch, about["dtype"]), torch.Size(about["size"])
    if not isinstance(dtype, torch.dtype):
        raise Damaged(f"{INDEX} asks for {about['dtype']}, which is no kind of number")
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    return TensorStorageMetadata(TensorProperties(dtype=dtype), size, [whole])


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
