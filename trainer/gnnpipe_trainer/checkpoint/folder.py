"""Checkpoints on disk: whole or not there.

A checkpoint is a folder `epoch-000123`: one torch.distributed.checkpoint part per rank, and manifest.json, which is
written last and holds the checksum of every file and of itself. It is written as `epoch-000123.new` and renamed.
The one that it replaces is kept as `spare` until the next is written over it: a disk takes bytes for blocks that it
has given out already in a third of the time, and is not asked to forget them.
Nothing here needs torch: whoever only asks what a folder holds gets a quick answer. parts.py reads and writes parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

FORMAT = 3  # raise when older checkpoints can no longer be read
MANIFEST = "manifest.json"
BESIDE = ".new"
SPARE = "spare"
CHUNK_BYTES = 1 << 20


class Damaged(Exception):
    """A checkpoint is not what was written; the sentence says where."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every byte is as it was written."""

    folder: Path
    content: dict[str, Any]

    @property
    def epoch(self) -> int:
        return int(self.content["epoch"])


def folder_of(checkpoints: Path, epoch: int) -> Path:
    return checkpoints / f"epoch-{epoch:06d}"


def beside(folder: Path) -> Path:
    return folder.with_name(folder.name + BESIDE)


def found(checkpoints: Path) -> list[Path]:
    """Folders of checkpoints, the newest first; nothing is known about them yet."""
    named = [path for path in _entries(checkpoints) if re.fullmatch(r"epoch-\d{6,}", path.name)]
    return sorted(named, key=lambda path: int(path.name.removeprefix("epoch-")), reverse=True)


def unfinished(checkpoints: Path) -> list[Path]:
    """What a killed run was writing."""
    return [path for path in _entries(checkpoints) if path.name.endswith(BESIDE)]


def _entries(checkpoints: Path) -> list[Path]:
    return sorted(checkpoints.iterdir()) if checkpoints.is_dir() else []


# -- writing -----------------------------------------------------------------------------------------------


def publish(folder: Path, content: dict[str, Any], checksums: dict[str, str]) -> None:
    """Give the finished parts in `beside(folder)` their manifest and their name."""
    written = beside(folder)
    missing = [name for name in checksums if not (written / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{written / missing[0]} was written by another rank but is not here; "
            "checkpoints need a folder that all ranks share"
        )
    whole = {"format": FORMAT, **content, "files": checksums}
    text = json.dumps({"sha256": _digest_of(whole), "content": whole}, indent=1)
    with (written / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if folder.exists():  # an earlier attempt got this far too, and was found damaged
        shutil.rmtree(folder)
    written.rename(folder)
    _sync_folder(folder.parent)


def prune(checkpoints: Path, keep: int, newest: int) -> None:
    """Of those up to epoch `newest` keep the last `keep`. Each holds the best weights so far: none are lost.

    Later ones can only be damaged ones that were passed over; they are replaced when training gets there.
    """
    settled = [folder for folder in found(checkpoints) if folder.name <= folder_of(checkpoints, newest).name]
    for old in settled[keep:]:
        (old / MANIFEST).unlink(missing_ok=True)  # from here on nobody takes it for whole
        try:
            old.rename(checkpoints / SPARE)
        except OSError:  # there is one
            shutil.rmtree(old, ignore_errors=True)


def take_spare(part: Path) -> None:
    """Let a part that is about to be written beside begin with the files of a spare one, if there is any."""
    written, name = part.parent, part.name
    written.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        (written.parent / SPARE / name).rename(part)


def drop_spare(checkpoints: Path) -> None:
    """Nothing more will be written."""
    shutil.rmtree(checkpoints / SPARE, ignore_errors=True)


def digest(file: Path) -> str:
    """XXH3, 128 bits: against damage it is as good as SHA-256, at an eighth of its time. It is no signature."""
    known, chunk = xxhash.xxh3_128(), memoryview(bytearray(CHUNK_BYTES))
    with file.open("rb", buffering=0) as stream:
        while read := stream.readinto(chunk):
            known.update(chunk[:read])
    return known.hexdigest()


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only once its folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading -----------------------------------------------------------------------------------------------


def newest_whole(checkpoints: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest undamaged checkpoint; each damaged one that is passed over is named in a warning."""
    for folder in found(checkpoints):
        try:
            return verified(folder)
        except Damaged as damage:
            warn(f"The checkpoint {folder} is damaged ({damage}); going back to the one before")
    return None


def verified(folder: Path) -> Checkpoint:
    """The checkpoint in the folder, if every file has its checksum; else Damaged."""
    content = read_manifest(folder)
    for name, expected in content["files"].items():
        try:
            actual = digest(folder / name)
        except OSError as error:
            raise Damaged(f"{name} cannot be read: {error.strerror}") from error
        if actual != expected:
            raise Damaged(f"{name} is not as it was written")
    return Checkpoint(folder, content)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What manifest.json says, after its own checksum; else Damaged."""
    try:
        outer = json.loads((folder / MANIFEST).read_bytes())
        content: dict[str, Any] = outer["content"]
        if outer["sha256"] != _digest_of(content):
            raise Damaged(f"{MANIFEST} is not as it was written")
        version = content["format"]
    except OSError as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{MANIFEST} is not as it was written") from error
    if version != FORMAT:
        raise Damaged(f"it has format {version}, this version reads format {FORMAT}")
    return content
