"""What each block costs, measured: stages are cut by it, not by counting layers.

Blocks that look alike get the same cost (the median of their kind), so that noise cannot make an even model uneven.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor

from gnnpipe_trainer.models.block import Block, ConvBlock, Model, State
from gnnpipe_trainer.pipeline.shard import Shard

REPEATS = 9  # the quickest counts: a busy machine makes single passes look far too slow
MOST_ALIKE = 4  # blocks of one kind that are measured
SAMPLE_SLOT = 0


def measure_layer_costs(model: Model, shard: Shard) -> list[float]:
    """Seconds of one slot per layer, forward and backward; the encoder counts to the first, the decoder to the last."""
    model = copy.deepcopy(model).to(shard.device)
    rows = shard.inward.rows_of(SAMPLE_SLOT)
    features = shard.features[rows].to(next(model.parameters()).dtype)
    kinds: dict[tuple[object, ...], list[float]] = defaultdict(list)
    blocks = model.block_list()
    encoder_seconds, state = _timed(lambda: model.encoder(features), features)
    for block in blocks:
        kind = _kind(block)
        if len(kinds[kind]) < MOST_ALIKE:
            seconds, state = _measure_block(block, shard, rows, state)
            kinds[kind].append(seconds)
        else:
            state = tuple(features.new_zeros(len(features), width) for width in block.widths)
    decoder_seconds, _ = _timed(lambda: (model.decoder(state),), *state)
    costs = [statistics.median(kinds[_kind(block)]) for block in blocks]
    costs[0] += encoder_seconds
    costs[-1] += decoder_seconds
    return costs


def _measure_block(block: Block, shard: Shard, rows: slice, state: State) -> tuple[float, State]:
    inputs = tuple(t.detach().requires_grad_() for t in state)
    message = block.message(inputs)
    buffer = message.new_zeros(shard.inward.rows, block.message_width)
    if isinstance(block, ConvBlock):
        edges = _own_edges(shard, rows)
        return _timed(
            lambda: block.update(block.convolve(message, len(message), edges), message, inputs), *inputs
        )
    assert block.edge_weights is not None
    matrix = shard.matrix(block.edge_weights, transposed=False)
    aggregation = min(_seconds(lambda: matrix.times(buffer, rows)) for _ in range(REPEATS))
    gathered = matrix.times(buffer, rows).requires_grad_()
    seconds, state = _timed(lambda: block.update(gathered, block.message(inputs), inputs), gathered, *inputs)
    return seconds + 2 * aggregation, state  # backward aggregates once more


def _own_edges(shard: Shard, rows: slice) -> Tensor:
    """Edges inside the slot stand for all of them: the same share of every block's edges is left out."""
    side = shard.inward
    targets = torch.repeat_interleave(
        torch.arange(rows.stop - rows.start),
        torch.from_numpy(side.indptr[rows.start : rows.stop + 1]).diff(),
    )
    sources = torch.from_numpy(side.columns[side.indptr[rows.start] : side.indptr[rows.stop]]) - rows.start
    inside = (sources >= 0) & (sources < rows.stop - rows.start)
    return torch.stack([sources[inside], targets[inside]]).to(shard.device)


def _timed(run: Callable[[], State], *inputs: Tensor) -> tuple[float, State]:
    """The quickest of a few forward and backward passes, and what the last one returned."""
    best = float("inf")
    outputs: State = ()
    for _ in range(REPEATS):
        start = time.perf_counter()
        outputs = run()
        roots = [t for t in outputs if t.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(t) for t in roots], retain_graph=True)
        best = min(best, time.perf_counter() - start)
    return best, tuple(t.detach() for t in outputs)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _kind(block: Block) -> tuple[object, ...]:
    shapes = tuple(tuple(p.shape) for p in block.parameters())
    return type(block), block.edge_weights, block.message_width, block.widths, shapes
