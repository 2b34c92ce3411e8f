"""Decides what is auto in `spec.parallelism.history` and `spec.training.averaging` before the first epoch, alike on all
ranks and in all attempts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.staleness.carry import (
    Traits,
    averaged,
    carried,
    correction,
    with_averaging,
    with_history,
)
from gnnpipe_trainer.staleness.share import StaleShare

log = logging.getLogger("gnnpipe")


def settled(
    job: GNNPipeJob, slots: int, model: Model, shards: Sequence[Shard], control: dist.ProcessGroup
) -> GNNPipeJob:
    """The job as if its manifest said what graph, cut and model make of auto; `shards` are this process's."""
    history, averaging = job.spec.parallelism.history, job.spec.training.averaging
    if "auto" not in (history.gradients, history.correction, averaging.mode):
        return job
    stale = stale_edges(shards, control) if slots > 1 else 0.0
    traits = traits_of(model)
    gradients = carried(job.spec.parallelism, traits, stale)
    corrected = correction(history, any(block.follows_mean for block in model.block_list()), stale)
    mode = averaged(averaging, stale)
    if slots > 1 and dist.get_rank() == 0:
        asked = (
            ("parallelism.history.gradients", history.gradients, gradients),
            ("parallelism.history.correction", history.correction, corrected),
            ("training.averaging.mode", averaging.mode, mode),
        )
        for field, said, chosen in asked:
            if said == "auto":
                log.info("spec.%s: auto is %s: %.0f%% stale edges", field, chosen, 100 * stale)
    return with_averaging(with_history(job, gradients, corrected), mode)


def traits_of(model: Model) -> Traits:
    blocks = model.block_list()
    return Traits(
        layers=len(blocks),
        bypass=any(block.bypass for block in blocks),
        summed=all(block.edge_weights is not None for block in blocks),
    )


def stale_edges(shards: Sequence[Shard], control: dist.ProcessGroup) -> float:
    """The share of all edges that read history, on average over the epochs: the same number on every rank.

    Edges are counted, not weighed, so that a plan, which knows no weights, comes to the same number.
    """
    counts = torch.zeros(2, dtype=torch.float64)
    for shard in shards:
        counts += torch.tensor(StaleShare(shard, None).expect(), dtype=torch.float64)
    dist.all_reduce(counts, group=control)
    return float(counts[0] / counts[1]) if counts[1] > 0 else 0.0
