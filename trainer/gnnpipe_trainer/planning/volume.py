"""Bytes that leave the ranks in one epoch, by kind: the very bytes that the engine counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.shape import ModelShape

RELU_LEAVES = 0.5
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp64": 8}


@dataclass(frozen=True)
class Volume:
    """Bytes per epoch, summed over all ranks."""

    pipeline: int
    graph: int
    gradient: int

    @property
    def total(self) -> int:
        return self.pipeline + self.graph + self.gradient

    def as_dict(self) -> dict[str, int]:
        return {**asdict(self), "total": self.total}


def item_bytes(job: GNNPipeJob) -> int:
    """Of a number as it is computed."""
    return ITEM_BYTES[job.spec.training.precision]


def wire_bytes(job: GNNPipeJob) -> int:
    """Of a number on its way to another rank; fp32 sends numbers as they are computed."""
    return item_bytes(job) if job.spec.parallelism.wire == "fp32" else ITEM_BYTES["bf16"]


def crossing_share(job: GNNPipeJob) -> float:
    """Of a border's bytes: all, or with `wireZeros: skip` an estimate, for only training shows which numbers are zero.

    ReLU leaves about half of them, dropout after it its share of those. Forward, each number has a bit as well.
    """
    parallelism, model = job.spec.parallelism, job.spec.model
    if parallelism.wire_zeros != "skip" or not model.is_built_in or model.kind == "resgcn":
        return 1.0
    left = (
        RELU_LEAVES if model.kind == "gcnii" else RELU_LEAVES * (1 - model.dropout)
    )  # gcnii drops what it receives
    return min(1.0, left + 1 / (2 * 8 * wire_bytes(job)))


def volume(job: GNNPipeJob, plan: Plan, shape: ModelShape, cut: Cut) -> Volume:
    """Bytes of one epoch of this plan."""
    wire = wire_bytes(job)
    vertices = round(float(cut.rows.sum()))
    borders = sum(shape.blocks[plan.first_layer(stage) - 1].border_width for stage in range(1, plan.stages))
    rows_times_width = sum(
        block.message_width * (cut.mirrors + (cut.mirrors if block.edges == "conv" else cut.out_mirrors))
        for block in shape.blocks
        if not block.constant
    )
    return Volume(
        # activations one way, their gradients the other
        pipeline=round(2 * wire * borders * vertices * crossing_share(job)),
        graph=wire * rows_times_width,
        gradient=sum(
            _all_reduce(parameters, plan.ways, item_bytes(job)) for parameters in _stages(plan, shape)
        ),
    )


def _stages(plan: Plan, shape: ModelShape) -> list[int]:
    """Parameters of each stage."""
    return [
        shape.parameters(plan.first_layer(stage), count) for stage, count in enumerate(plan.layers_per_stage)
    ]


def _all_reduce(parameters: int, ways: int, size: int) -> int:
    """A ring moves every byte 2 (W-1)/W times out of each of W ranks."""
    return ways * (2 * (ways - 1) * parameters * size // ways)
