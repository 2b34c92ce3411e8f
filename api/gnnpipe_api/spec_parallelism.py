"""`spec.parallelism`: how layers and graph are cut, and what stands in for chunks not come by yet."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gnnpipe_api.part import Count, CountOrAuto, Part


class HistorySpec(Part):
    """Historical embeddings: what a chunk reads for neighbours whose chunk was not processed yet this
    epoch."""

    mode: Literal["ema", "frozen", "previous", "shift"] = "ema"
    """ema: a moving average over the epochs. frozen: a snapshot kept for refreshEvery epochs, as in the
    paper. previous: the previous epoch's values; fast to go unstable. shift: previous with a correction
    of the mean, the least memory."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Mode ema: weight of the old average; history = decay * history + (1 - decay) * fresh."""
    refresh_every: Count = 20
    """Mode frozen: epochs between two snapshots."""
    warmup: Literal["exact", "zeros"] = "exact"
    """What history holds at first: exact runs one pass without history; zeros starts from nothing."""
    gradients: Literal["auto", "drop", "last"] = "auto"
    """What flows back to neighbours that were read from history. drop: nothing. last: what flowed in the
    epoch before. auto: last if at least 30% of the edges read history and the model is sage, gin, gcnii,
    resgcn or one whose blocks say bypass; else drop."""


class ParallelismSpec(Part):
    """Stages x 1 is a pipeline, stages x ways is hybrid, 1 x ways is exact graph parallelism."""

    stages: CountOrAuto = 1
    """Pipeline stages the layers are cut into, one pod each; a number, or auto."""
    ways: CountOrAuto = 1
    """Ranks that share each chunk inside a stage, one GPU each; a number, or auto."""
    chunks: CountOrAuto | None = None
    """Parts the graph is cut into; a multiple of ways, or auto. Left out or auto: 4 x stages x ways, and
    with one stage just as many as ways, which makes training exact."""
    shuffle_chunks: bool = True
    """Take the chunks in another order each epoch."""
    history: HistorySpec = Field(default_factory=HistorySpec)
    """What stands in for the embeddings of chunks that have not come by yet."""
    fresh_gradient_factor: Annotated[float, Field(ge=1, le=2)] = 1.0
    """Factor on gradients that flow between chunks of one epoch. 1 is the exact gradient with history
    held constant; 2 makes up for the paths that history cuts, as in the paper."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """Number format of what crosses stage borders. fp32 sends values as they are computed; bf16 halves
    the bytes."""
    wire_zeros: Literal["send", "skip"] = "send"
    """Whether zeros cross stage borders. skip leaves out zeros and the gradients that would stop at them: about
    half of the bytes, less with dropout, and the same training bit for bit. It needs a state that comes out of a
    ReLU, so it changes nothing for resgcn."""
    history_precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the historical embeddings. fp32 keeps values as they are computed; bf16 halves the
    memory."""
    split_backward: bool = True
    """Send input gradients on before computing weight gradients, so that the previous stage waits
    less."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
