"""Which layers lie on which stage: cut by measured cost, agreed on by all ranks, remembered for the next run.

Where layers are cut changes nothing about what is computed, only who waits for whom. A run that resumes keeps its
cut all the same, because its history lies with the ranks that own the layers.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnnpipe_api.plan import Plan, better_cut
from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.pipeline.cost import measure_layer_costs
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.report import write_json

log = logging.getLogger("gnnpipe")


def agree_on_cut(plan: Plan, model: Model, shard: Shard, folder: Path, control: dist.ProcessGroup) -> Plan:
    """Rank 0 remembers or measures; the others take its word."""
    if plan.stages == 1:
        return plan
    layers = torch.tensor(plan.layers_per_stage)
    if dist.get_rank() == 0:
        layers = torch.tensor(_remembered(plan, folder) or _measured(plan, model, shard, folder))
    dist.broadcast(layers, 0, group=control)
    return replace(plan, layers_per_stage=tuple(layers.tolist()))


def _measured(plan: Plan, model: Model, shard: Shard, folder: Path) -> tuple[int, ...]:
    cut = better_cut(plan.layers_per_stage, measure_layer_costs(model, shard))
    if cut != plan.layers_per_stage:
        log.info("Layers per stage by measured cost: %s instead of %s", cut, plan.layers_per_stage)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "cut.json", {**_shape(plan), "layersPerStage": list(cut)})
    except OSError as error:
        log.warning("Cannot remember the cut in %s (%s): a resumed run measures anew", folder, error)
    return cut


def _remembered(plan: Plan, folder: Path) -> tuple[int, ...] | None:
    try:
        content = json.loads((folder / "cut.json").read_text())
        cut = tuple(int(layers) for layers in content.pop("layersPerStage"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return cut if content == _shape(plan) else None


def _shape(plan: Plan) -> dict[str, Any]:
    return {
        "stages": plan.stages,
        "ways": plan.ways,
        "chunks": plan.chunks,
        "layers": sum(plan.layers_per_stage),
    }
