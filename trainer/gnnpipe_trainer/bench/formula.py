"""Bytes per epoch by formula: what a cut must send, from the graph's and the model's sizes alone."""

from __future__ import annotations

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.wire import GRADIENT, GRAPH, PIPELINE

WIRE_BYTES = {"fp32": 4, "bf16": 2}
GRADIENT_BYTES = 4


def formula_bytes(job: GNNPipeJob, plan: Plan, graph: ChunkedGraph) -> dict[str, int]:
    """By kind, over all ranks, forward and backward; `graph` is the one cut for this plan.

    pipeline = 2 b V sum(width at each stage border)
    graph    = 2 b M sum(width of each aggregation), without that of constant features; M: mirrors between ways
    gradient = 8 (ways - 1) |weights|, a ring all-reduce inside each stage
    """
    model = build_model(job.spec.model, graph.num_features, graph.num_classes)
    blocks = model.block_list()
    number = WIRE_BYTES[job.spec.parallelism.wire]
    borders = [blocks[plan.first_layer(stage) - 1].widths for stage in range(1, plan.stages)]
    first = blocks[0]
    constant = model.constant_first_message and first.edge_weights is not None
    summed = sum(block.message_width for block in blocks) - (first.message_width if constant else 0)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return {
        PIPELINE: 2 * number * graph.num_vertices * sum(sum(widths) for widths in borders),
        GRAPH: 2 * number * summed * (graph.mirrors() if plan.ways > 1 else 0),
        GRADIENT: 2 * GRADIENT_BYTES * (plan.ways - 1) * weights,
    }
