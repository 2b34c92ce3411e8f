"""Decides `history.gradients: auto` before the first epoch, alike on every rank and in every attempt."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.staleness.carry import carried, with_carried
from gnnpipe_trainer.staleness.share import StaleShare

log = logging.getLogger("gnnpipe")


def settled(
    job: GNNPipeJob, slots: int, model: Model, shards: Sequence[Shard], control: dist.ProcessGroup
) -> GNNPipeJob:
    """The job as if its manifest said what graph, cut and model make of auto; `shards` are this process's."""
    if job.spec.parallelism.history.gradients != "auto":
        return job
    stale = stale_edges(shards, control) if slots > 1 else 0.0
    blocks = model.block_list()
    bypass, summed = any(b.bypass for b in blocks), all(b.edge_weights is not None for b in blocks)
    chosen = carried(job.spec.parallelism, bypass, summed, stale)
    if slots > 1 and dist.get_rank() == 0:
        log.info("spec.parallelism.history.gradients: auto is %s: %.0f%% stale edges", chosen, 100 * stale)
    return with_carried(job, chosen)


def stale_edges(shards: Sequence[Shard], control: dist.ProcessGroup) -> float:
    """The share of all edges that read history, on average over the epochs: the same number on every rank.

    Edges are counted, not weighed, so that a plan, which knows no weights, comes to the same number.
    """
    counts = torch.zeros(2, dtype=torch.float64)
    for shard in shards:
        counts += torch.tensor(StaleShare(shard, None).expect(), dtype=torch.float64)
    dist.all_reduce(counts, group=control)
    return float(counts[0] / counts[1]) if counts[1] > 0 else 0.0
