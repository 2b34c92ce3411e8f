"""Whether all ranks see the same folder: a checkpoint whose parts lie on different machines is none."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("gnnpipe")


def all_see(checkpoints: Path, control: dist.ProcessGroup) -> bool:
    """Every rank looks for what rank 0 has just put there. A folder that cannot be written may be one later on."""
    named: list[str | None] = [None]
    if dist.get_rank() == 0:
        named[0] = _put_a_mark(checkpoints)
    dist.broadcast_object_list(named, 0, group=control)
    mark = None if named[0] is None else checkpoints / named[0]
    seen = torch.tensor([int(mark is None or mark.exists())])
    dist.all_reduce(seen, dist.ReduceOp.MIN, group=control)
    if mark is not None and dist.get_rank() == 0:
        mark.unlink(missing_ok=True)
        if not seen:
            log.warning(
                "%s is not a folder that all ranks share, so there are no checkpoints: a restart begins anew. "
                "Name a volume in spec.checkpoint.volume",
                checkpoints,
            )
    return bool(seen)


def _put_a_mark(checkpoints: Path) -> str | None:
    mark = checkpoints / f".shared-{uuid.uuid4().hex}"
    try:
        checkpoints.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        return None
    return mark.name
