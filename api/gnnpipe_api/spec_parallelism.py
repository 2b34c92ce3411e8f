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
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs at the start that read no history: the whole graph goes through the stages at once, which is
    exact, but only one stage works at a time, so each takes up to stages times as long."""
    correction: Literal["auto", "none", "mean"] = "auto"
    """Modes ema and frozen: whether history is brought up to date while an epoch runs. mean: what is read from
    history is moved by how far the mean of the rows that have come by in this epoch has left theirs. none: it is
    read as it is. auto: mean in mode ema for gcnii and models whose blocks say follows_mean if at least 15% of the
    edges read history, else none."""
    gradients: Literal["auto", "drop", "last", "average"] = "auto"
    """What flows back to neighbours that were read from history. drop: nothing. last: what flowed in the
    epoch before. average: a moving average of what flowed in the epochs before, with the same decay; convs
    that are no weighted sums take the last. auto: drop if less than 30% of the edges read history; else last for
    sage, gin, gcnii, resgcn and models whose blocks say bypass, average for gcn and other weighted sums of up to
    4 layers, and drop for the rest."""


class ParallelismSpec(Part):
    """Stages x 1 is a pipeline, stages x ways is hybrid, 1 x ways is exact graph parallelism."""

    stages: CountOrAuto = 1
    """Pipeline stages the layers are cut into, one pod each; a number, or auto: what the planner forecasts to be
    the quickest."""
    ways: CountOrAuto = 1
    """Ranks that share each chunk inside a stage, one GPU each; a number, or auto."""
    chunks: CountOrAuto | None = None
    """Parts the graph is cut into; a multiple of ways, or auto. Left out beside numbers: 4 x stages x ways, and
    with one stage just as many as ways, which makes training exact."""
    max_ranks: Count | None = None
    """Ranks (stages x ways, a GPU each) that auto may take at most. Left out: on Kubernetes 4, or as many as the
    numbers beside auto take. A local run takes no more than this machine has GPUs, or cores, in any case."""
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
    wire_zeros: Literal["auto", "send", "skip"] = "auto"
    """Whether zeros cross stage borders. skip leaves out zeros and the gradients that would stop at them: about
    half of the bytes, less with dropout, and the same training bit for bit. It needs a state that comes out of a
    ReLU, so it changes nothing for resgcn. auto skips them from the third epoch on where a border's bytes turn out
    to take more than half as long on their way as a stage computes; where links are quick, finding the zeros would
    cost more than they do, and on one machine it never does."""
    history_precision: Literal["fp32", "bf16"] = "fp32"
    """Number format of the historical embeddings. fp32 keeps values as they are computed; bf16 halves the
    memory."""
    split_backward: bool = True
    """Send input gradients on before computing weight gradients, so that the previous stage waits
    less."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""

    @property
    def has_auto(self) -> bool:
        """Whether a planner must look at the graph before anybody can train."""
        return "auto" in (self.stages, self.ways, self.chunks)

    @property
    def fixed_ranks(self) -> int:
        """Ranks that the numbers take for certain."""
        stages, ways = (1 if asked == "auto" else asked for asked in (self.stages, self.ways))
        return stages * ways
