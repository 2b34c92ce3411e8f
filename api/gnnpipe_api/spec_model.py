"""`spec.model` and `spec.training`: what is trained, and how."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gnnpipe_api.part import Count, Object, Part, Seconds

BUILT_IN_MODELS = ("gcn", "sage", "gin", "gat", "gcnii", "resgcn")
MAX_LAYERS = 10_000  # deeper than any model; what is above is a slip of the keyboard
_FACTORY = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*"


def _known_kind(kind: str) -> str:
    if kind in BUILT_IN_MODELS or re.fullmatch(_FACTORY, kind):
        return kind
    near = get_close_matches(kind.lower(), BUILT_IN_MODELS, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else "."
    raise PydanticCustomError(
        "model_kind",
        "{kind} is neither a built-in model ({known}) nor of the form module:factory{suggestion}",
        {"kind": repr(kind), "known": ", ".join(BUILT_IN_MODELS), "suggestion": suggestion},
    )


ModelKind = Annotated[
    str,
    AfterValidator(_known_kind),
    WithJsonSchema({"type": "string", "pattern": f"^({'|'.join(BUILT_IN_MODELS)}|{_FACTORY})$"}),
]


class ModelCode(Part):
    """Where the Python files of a model of one's own come from."""

    config_map: str
    """ConfigMap whose keys are Python files; they are put on the Python path of the pods. A local run
    uses the manifest's folder instead."""


class ModelSpec(Part):
    """The graph neural network."""

    kind: ModelKind
    """A built-in model (gcn, sage, gin, gat, gcnii, resgcn), or module:factory for blocks of one's
    own."""
    layers: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    """Number of layers; each does one aggregation over the graph. They are cut into the stages."""
    hidden: Count = 64
    """Width of the hidden layers."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Probability that an activation is dropped during training."""
    options: Object = Field(default_factory=dict)
    """Settings of the chosen model, for example alpha and theta of gcnii."""
    code: ModelCode | None = None
    """Python files of a module:factory model."""

    @property
    def is_built_in(self) -> bool:
        return self.kind in BUILT_IN_MODELS


class EarlyStopping(Part):
    """Stop when validation accuracy no longer rises."""

    patience: Count
    """Number of epochs without a better validation accuracy after which training stops."""


class Divergence(Part):
    """What to do when training diverges: the loss is no number, or has risen far over its best."""

    action: Literal["warn", "rollback", "fail"] = "warn"
    """warn: say so and go on. rollback: go back to the last good checkpoint and train on with half the
    learning rate and a calmer history. fail: end the job. A loss that is no number never goes on: warn
    then ends the job too."""
    tolerance: Annotated[float, Field(gt=0)] = 0.5
    """Share of the loss's fall since the first epoch that may be lost again, as a mean over 10 epochs,
    before training counts as diverging."""
    max_rollbacks: Count = 3
    """Action rollback: after so many the job fails."""


class Averaging(Part):
    """Which weights are evaluated, compared for the best epoch and written to model.pt: those of the last
    step, or an average over the epochs. Training itself never reads an average."""

    mode: Literal["auto", "none", "ema", "tail"] = "auto"
    """none: the weights of the last step. ema: a moving average of the weights over the epochs. tail: two of
    them, over about the last sixteenth and the last quarter of the epochs so far; each evaluation counts the
    one that validates better, and takes twice as long. auto: tail if at least 30% of the edges read history,
    else none."""
    decay: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Mode ema: weight of the old average, average = decay * average + (1 - decay) * weights, once an epoch;
    at first the plain mean of the epochs so far, until that is as slow."""


class LearningRateSchedule(Part):
    """How the learning rate changes over the epochs: which share of learningRate each of them has. (A schedule without
    that word before it is the pipeline's: what happens when in an epoch.)"""

    mode: Literal["constant", "cosine", "step"] = "constant"
    """constant: learningRate throughout. cosine: it falls to floor along half a wave of a cosine. step: each step
    multiplies it by factor. Each begins after warmupEpochs."""
    warmup_epochs: Annotated[int, Field(ge=0)] = 0
    """Epochs at the start in which the rate rises linearly: with n of them, epoch k (counted from 1) has k / (n + 1) of
    learningRate, and the first one after them has all of it. Any mode; must be less than epochs. Not those of
    parallelism.history, which read no history."""
    floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Mode cosine: share of learningRate at which the curve ends, after the last epoch, as torch's CosineAnnealingLR
    has it. So the last epoch still learns, and has a little more than this: with floor 0 and 100 epochs after the
    warm-up, 0.00025 of learningRate. The curve spans epochs: early stopping cuts it off, and more epochs stretch it."""
    every: Count = 100
    """Mode step: epochs between two steps, counted from the end of the warm-up."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Mode step: what each step multiplies the rate by."""


class TrainingSpec(Part):
    """How the model is trained."""

    epochs: Count = 200
    """Passes over the whole graph; each ends with one optimizer step."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """Optimizer: adam, adamw or sgd."""
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    """Step size of the optimizer; with a learning-rate schedule, the highest."""
    learning_rate_schedule: LearningRateSchedule = Field(default_factory=LearningRateSchedule)
    """How the learning rate changes over the epochs: warm-up, cosine, steps. Left out, it stays as it is."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of the optimizer."""
    block_weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of the layers that are cut into stages, where it differs from that of the dense layers
    before and after them, as GCNII's authors have it. Left out: weightDecay."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd; the other optimizers do not take it."""
    seed: int = 0
    """Seed of the weights, the dropout and the order of the chunks; the same seed gives the same
    result."""
    evaluate_every: Count = 10
    """Epochs between two exact evaluations on the whole graph; the last epoch is always evaluated."""
    precision: Literal["fp32", "bf16", "fp64"] = "fp32"
    """Number format of the computation."""
    early_stopping: EarlyStopping | None = None
    """Stop before the last epoch when validation accuracy no longer rises. Left out, all epochs are
    run."""
    averaging: Averaging = Field(default_factory=Averaging)
    """Which weights are evaluated and kept: the last, or an average over the epochs."""
    divergence: Divergence = Field(default_factory=Divergence)
    """What to do when training diverges."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute. auto takes a GPU where there is one; on Kubernetes auto and cuda ask for one GPU
    per rank, cpu asks for none."""
    stall_timeout_seconds: Seconds = 120
    """A rank that makes no progress for so long is named and the attempt fails."""
