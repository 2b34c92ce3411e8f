"""What a checkpoint's `.metadata` may ask for when it is read."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from gnnpipe_trainer.checkpoint.folder import Damaged
from gnnpipe_trainer.checkpoint.reader import _Unpickler


class Attribute:
    """Is pickled as `getattr(kind, name)`."""

    def __init__(self, kind: Any, name: str) -> None:
        self.asked = (kind, name)

    def __reduce__(self) -> Any:
        return getattr, self.asked


def read(pickled: object) -> Any:
    return _Unpickler(io.BytesIO(pickle.dumps(pickled))).load()


def test_members_of_enumerations_are_read_as_every_python_writes_them() -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    assert read(member) is member
    assert read(Attribute(_MEM_FORMAT_ENCODING, member.name)) is member  # as 3.11.2 does, which Debian 12 has


@pytest.mark.parametrize(
    ("kind", "name"), [(torch.Size, "__subclasses__"), (_MEM_FORMAT_ENCODING, "__init__")]
)
def test_no_other_attribute_is_handed_out(kind: Any, name: str) -> None:
    with pytest.raises((Damaged, KeyError)):
        read(Attribute(kind, name))
