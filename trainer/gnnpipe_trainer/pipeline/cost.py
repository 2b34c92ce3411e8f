"""What each block costs, measured: stages are cut by it, not by counting layers.

Blocks that look alike get the same cost, so that noise cannot make an even model uneven. All kinds are measured in
turn, several times over, and the quickest pass of each counts: whatever else a busy machine does for a while slows
one round of all of them, never all rounds of one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from gnnpipe_trainer.models.block import Block, ConvBlock, Model, State
from gnnpipe_trainer.pipeline.shard import Shard

ROUNDS = 9
SAMPLE_SLOT = 0
ENCODER, DECODER, CONSTANT_SUM = "encoder", "decoder", "constant sum"

Pass = Callable[[], object]


def measure_layer_costs(model: Model, shard: Shard) -> list[float]:
    """Seconds of one slot per layer, forward and backward; the encoder counts to the first, the decoder to the last."""
    model = copy.deepcopy(model).to(shard.device)
    seconds = quickest(_passes(model, shard))
    costs = [seconds[_kind(model, index)] for index in range(len(model.blocks))]
    costs[0] += seconds[ENCODER]
    costs[-1] += seconds[DECODER]
    return costs


def quickest(
    passes: dict[Hashable, Pass], rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> dict[Hashable, float]:
    """The least time that each pass took, all of them in turn."""
    best = dict.fromkeys(passes, float("inf"))
    for _ in range(rounds):
        for kind, run in passes.items():
            start = clock()
            run()
            best[kind] = min(best[kind], clock() - start)
    return best


def _passes(model: Model, shard: Shard) -> dict[Hashable, Pass]:
    """Forward and backward of one slot through the encoder, the decoder and the first block of every kind."""
    rows = shard.inward.rows_of(SAMPLE_SLOT)
    features = shard.features[rows].to(next(model.parameters()).dtype)
    state: State = tuple(t.detach() for t in model.encoder(features))
    passes: dict[Hashable, Pass] = {ENCODER: lambda: _both_ways(model.encoder(features))}
    for index, block in enumerate(model.block_list()):
        kind = _kind(model, index)
        if kind == CONSTANT_SUM:
            passes[kind] = _constant_pass(block, state)
        elif kind not in passes:
            passes[kind] = _block_pass(block, shard, rows, tuple(t.requires_grad_() for t in state))
        state = tuple(features.new_ones(len(features), width) for width in block.widths)
    last = tuple(t.requires_grad_() for t in state)
    passes[DECODER] = lambda: _both_ways((model.decoder(last),))
    return passes


def _constant_pass(block: Block, state: State) -> Pass:
    """A sum that was computed once for all epochs, of features that want no gradient."""
    return lambda: _both_ways(block.update(state[0], state[0], state))


def _block_pass(block: Block, shard: Shard, rows: slice, state: State) -> Pass:
    if isinstance(block, ConvBlock):
        edges = _own_edges(shard, rows)

        def convolve() -> None:
            message = block.message(state)
            _both_ways(block.update(block.convolve(message, len(message), edges), message, state))

        return convolve
    assert block.edge_weights is not None
    matrix = shard.matrix(block.edge_weights, transposed=False)
    buffer = state[0].new_ones(shard.inward.rows, block.message_width)  # not zeros, which need no memory

    def add_up() -> None:
        gathered = matrix.times(buffer, rows).requires_grad_()
        _both_ways(block.update(gathered, block.message(state), state))
        matrix.times(buffer, rows)  # backward aggregates once more

    return add_up


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


def _both_ways(outputs: State) -> None:
    roots = [t for t in outputs if t.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])


def _kind(model: Model, index: int) -> Hashable:
    block = model.block_list()[index]
    if index == 0 and model.constant_first_message and block.edge_weights is not None:
        return CONSTANT_SUM
    shapes = tuple(tuple(p.shape) for p in block.parameters())
    return type(block), block.edge_weights, block.message_width, block.widths, shapes
