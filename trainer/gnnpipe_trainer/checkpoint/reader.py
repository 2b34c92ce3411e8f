"""Reads torch.distributed.checkpoint's `.metadata`, which is a pickle, without running what somebody put into it."""

from __future__ import annotations

import enum
import io
import pathlib
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from gnnpipe_trainer.checkpoint.folder import Damaged


def _member(kind: Any, name: str) -> Any:
    """Python 3.11.0 to 3.11.3 pickle members of enumerations as `getattr(kind, name)`: that much of it is allowed."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise Damaged(f".metadata asks for {name} of {kind!r}, which no checkpoint needs")
    return kind[name]


_ALLOWED = {
    ("builtins", "getattr"): _member,
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "TensorProperties",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    },
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("torch", "Size"): torch.Size,
    ("pathlib", "PosixPath"): pathlib.PosixPath,
}


class _Unpickler(pickle.Unpickler):
    """Knows what a `.metadata` is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) not in _ALLOWED:
            raise Damaged(f".metadata asks for {module}.{name}, which no checkpoint needs")
        return _ALLOWED[module, name]


class CarefulReader(FileSystemReader):
    """torch's reader, but for the pickle."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = pathlib.Path(self.path) / ".metadata"
        try:
            known = _Unpickler(io.BytesIO(path.read_bytes())).load()
        except Damaged:
            raise
        except Exception as error:  # a pickle that is none fails in any way it likes
            raise Damaged(f"{path.name} cannot be read: {type(error).__name__}") from error
        if not isinstance(known, Metadata):
            raise Damaged(f"{path.name} holds no description of a checkpoint")
        known.storage_meta = known.storage_meta or StorageMeta()
        known.storage_meta.load_id = self.load_id
        return known
