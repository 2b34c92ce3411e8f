"""Memory of one rank at its fullest, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.planning.cut import Cut
from gnnpipe_trainer.planning.hardware import Hardware
from gnnpipe_trainer.planning.shape import BlockShape, ModelShape
from gnnpipe_trainer.planning.volume import item_bytes, wire_bytes

RECEIVES_AHEAD = 4  # as in pipeline/engine.py, which needs torch to be read
INDEX_BYTES, HOST_INDEX_BYTES = 4, 8  # of the matrices, and of the numpy arrays they are made from
SETUP_BYTES_PER_EDGE = 56  # numpy's temporaries while edges are localised and weighed; malloc keeps them


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, by what they hold."""

    baseline: float
    graph: float
    features: float
    history: float
    gradients: float  # buffers of gradients between vertices, not of weights
    activations: float
    buffers: float
    weights: float
    setup: float = 0.0  # freed before training, but not given back; training grows into it

    @property
    def total(self) -> int:
        trained = self.history + self.gradients + self.activations + self.buffers
        return round(self.baseline + self.graph + self.features + self.weights + max(trained, self.setup))


def rank_memory(
    job: GNNPipeJob, plan: Plan, shape: ModelShape, cut: Cut, hardware: Hardware, stage: int
) -> Memory:
    """Of the fullest way of a stage."""
    return max(
        (_way_memory(job, plan, shape, cut, hardware, stage, way) for way in range(plan.ways)),
        key=lambda memory: memory.total,
    )


def _way_memory(
    job: GNNPipeJob, plan: Plan, shape: ModelShape, cut: Cut, hardware: Hardware, stage: int, way: int
) -> Memory:
    item, parallelism = item_bytes(job), job.spec.parallelism
    first, count = plan.first_layer(stage), plan.layers_per_stage[stage]
    blocks = shape.blocks[first : first + count]
    own = float(cut.rows[way].sum())
    rows = own + float(cut.receives[way].sum())
    on_host = hardware.memory_bytes is None
    live = [block for block in blocks if not block.constant]
    width = sum(block.message_width for block in live)
    ends = ([shape.encoder] if stage == 0 else []) + ([shape.decoder] if stage == plan.stages - 1 else [])
    saved = sum(block.saved for block in blocks) + sum(end.saved for end in ends)
    if parallelism.recompute:
        saved = sum(block.message_width + block.border_width for block in blocks)
    late = stage / max(1, plan.stages - 1) if parallelism.split_backward and plan.stages > 1 else 0.0
    put_off = late * sum(block.border_width for block in blocks)
    copies = _history_copies(parallelism.history.mode, cut.slots, plan.ways)
    borders = [shape.blocks[b - 1].border_width for b in (first, first + count) if 0 < b < len(shape.blocks)]
    chunk_rows = float(cut.rows[way].max())
    return Memory(
        baseline=hardware.baseline_bytes,
        graph=_graph(cut, blocks, way, item, on_host, shape),
        features=_features(shape, cut, stage, own, rows, item, on_host, bool(blocks[0].constant)),
        history=copies * rows * width * item,
        gradients=rows * width * item,
        activations=own * (saved + put_off) * item,
        buffers=sum(borders) * chunk_rows * (RECEIVES_AHEAD + 2) * wire_bytes(job),
        weights=(4 * shape.parameters(first, count) + shape.parameters(0, len(shape.blocks))) * item,
        setup=SETUP_BYTES_PER_EDGE * float(cut.entries[way].sum()) if on_host else 0.0,
    )


def _history_copies(mode: str, slots: int, ways: int) -> int:
    if slots == 1:
        return 1 if ways > 1 else 0  # all fresh: only a place for the rows of other ways
    return 2 if mode in ("ema", "frozen") else 1


def _graph(
    cut: Cut, blocks: tuple[BlockShape, ...], way: int, item: int, on_host: bool, shape: ModelShape
) -> float:
    """Matrices in both directions, which entries are stale, and on the host the arrays they were made from."""
    entries, rows = float(cut.entries[way].sum()), float(cut.rows[way].sum())
    matrix = (entries + rows) * (INDEX_BYTES + item)
    kinds = {block.edges for block in blocks}
    convs = sum(block.edges == "conv" for block in blocks)
    total = 0.0
    if kinds != {"conv"}:
        total += matrix * (3 if cut.ways > 1 else 2)
        if cut.slots > 1:
            total += entries * (2 * INDEX_BYTES + 1) + matrix * (2 if cut.ways > 1 else 1)
    # Every conv keeps the edges of each slot, and those of the whole graph for exact passes.
    total += convs * 2 * 2 * HOST_INDEX_BYTES * entries
    if on_host:
        everything = (
            float(cut.entries.sum()) * INDEX_BYTES + float(cut.rows.sum()) * HOST_INDEX_BYTES
        )  # mapped
        total += everything + HOST_INDEX_BYTES * (entries + 3 * rows)
    return total


def _features(
    shape: ModelShape, cut: Cut, stage: int, own: float, rows: float, item: int, on_host: bool, constant: bool
) -> float:
    if stage != 0:
        return 0.0
    copies = own * (item + (4 if on_host else 0))  # on the host the mapped file is seen too
    if constant:  # the sum over neighbours, and own and halo rows beside each other while it is made
        copies += own * item + rows * item
    return copies * shape.features
