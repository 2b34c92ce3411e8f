"""Rules about `spec.model`, `spec.training` and `spec.parallelism`."""

from __future__ import annotations

from collections.abc import Iterator

from gnnpipe_api.job import Averaging, HistorySpec, JobSpec, LearningRateSchedule
from gnnpipe_api.problems import Problem
from gnnpipe_api.rule import Cel, Rule, rule


@rule(
    "spec.model.kind",
    "spec.model.code",
    cel=(
        Cel(
            "!has(self.model.code) || self.model.kind.contains(':')",
            "model.code: only a module:factory model takes code.",
        ),
    ),
)
def only_a_model_of_ones_own_takes_code(spec: JobSpec) -> Iterator[Problem]:
    if spec.model.code is not None and spec.model.is_built_in:
        yield Problem(
            "spec.model.code",
            f"only a module:factory model takes code, but spec.model.kind is {spec.model.kind}.",
        )


@rule(
    "spec.training.earlyStopping.patience",
    "spec.training.evaluateEvery",
    cel=(
        Cel(
            "!has(self.training.earlyStopping)"
            " || self.training.earlyStopping.patience >= self.training.evaluateEvery",
            "training.earlyStopping.patience: must be at least training.evaluateEvery.",
        ),
    ),
)
def patience_outlasts_an_evaluation(spec: JobSpec) -> Iterator[Problem]:
    stopping, every = spec.training.early_stopping, spec.training.evaluate_every
    if stopping is not None and stopping.patience < every:
        yield Problem(
            "spec.training.earlyStopping.patience",
            f"must be at least spec.training.evaluateEvery, which is {every}, got {stopping.patience}.",
        )


@rule(
    "spec.training.momentum",
    "spec.training.optimizer",
    cel=(
        Cel(
            "self.training.momentum == 0.0 || self.training.optimizer == 'sgd'",
            "training.momentum: only sgd takes momentum.",
        ),
    ),
)
def only_sgd_has_momentum(spec: JobSpec) -> Iterator[Problem]:
    if spec.training.momentum and spec.training.optimizer != "sgd":
        yield Problem(
            "spec.training.momentum",
            f"only sgd takes momentum, but spec.training.optimizer is {spec.training.optimizer}.",
        )


@rule("spec.training.averaging")
def only_an_average_has_a_decay(spec: JobSpec) -> Iterator[Problem]:
    averaging = spec.training.averaging
    if averaging.mode != "ema" and averaging.decay != Averaging.model_fields["decay"].default:
        yield Problem(
            "spec.training.averaging.decay",
            f"only mode ema takes this, but spec.training.averaging.mode is {averaging.mode}.",
        )


_RATE = "training.learningRateSchedule"
_OF_MODE = (("floor", "cosine"), ("every", "step"), ("factor", "step"))


@rule(
    f"spec.{_RATE}",
    cel=tuple(
        Cel(
            f"self.{_RATE}.mode == '{mode}' || self.{_RATE}.{field} == "
            f"{LearningRateSchedule.model_fields[field].default}",
            f"{_RATE}.{field}: only mode {mode} takes this.",
        )
        for field, mode in _OF_MODE
    ),
)
def a_learning_rate_setting_belongs_to_its_mode(spec: JobSpec) -> Iterator[Problem]:
    asked = spec.training.learning_rate_schedule
    for field, mode in _OF_MODE:
        if getattr(asked, field) != LearningRateSchedule.model_fields[field].default and asked.mode != mode:
            yield Problem(
                f"spec.{_RATE}.{field}",
                f"only mode {mode} takes this, but spec.{_RATE}.mode is {asked.mode}.",
            )


@rule(
    f"spec.{_RATE}.warmupEpochs",
    "spec.training.epochs",
    cel=(
        Cel(
            f"self.{_RATE}.warmupEpochs < self.training.epochs",
            f"{_RATE}.warmupEpochs: must be less than training.epochs.",
        ),
    ),
)
def the_learning_rate_is_warm_before_the_end(spec: JobSpec) -> Iterator[Problem]:
    warmup, epochs = spec.training.learning_rate_schedule.warmup_epochs, spec.training.epochs
    if warmup >= epochs:
        yield Problem(
            f"spec.{_RATE}.warmupEpochs",
            f"must be less than spec.training.epochs, which is {epochs}, got {warmup}.",
        )


@rule(
    "spec.parallelism.stages",
    "spec.model.layers",
    cel=(
        Cel(
            "type(self.parallelism.stages) == string || int(self.parallelism.stages) <= self.model.layers",
            "parallelism.stages: there must be at least as many layers as stages.",
        ),
    ),
)
def every_stage_has_a_layer(spec: JobSpec) -> Iterator[Problem]:
    stages, layers = spec.parallelism.stages, spec.model.layers
    if stages != "auto" and stages > layers:
        yield Problem(
            "spec.parallelism.stages",
            f"{stages} stages need at least {stages} layers, but spec.model.layers is {layers}; "
            "use fewer stages or more layers.",
        )


@rule(
    "spec.parallelism.ways",
    "spec.parallelism.chunks",
    cel=(
        Cel(
            "!has(self.parallelism.chunks) || type(self.parallelism.chunks) == string"
            " || type(self.parallelism.ways) == string"
            " || int(self.parallelism.chunks) % int(self.parallelism.ways) == 0",
            "parallelism.chunks: must be a multiple of parallelism.ways.",
        ),
    ),
)
def ways_share_the_chunks_evenly(spec: JobSpec) -> Iterator[Problem]:
    ways, chunks = spec.parallelism.ways, spec.parallelism.chunks
    if ways == "auto" or chunks is None or chunks == "auto" or chunks % ways == 0:
        return
    if chunks < ways:
        sentence = f"{ways} ways need at least {ways} chunks, got {chunks}; use more chunks or fewer ways."
    else:
        fewer = chunks // ways * ways
        sentence = f"{ways} ways cannot share {chunks} chunks evenly; use {fewer} or {fewer + ways} chunks."
    yield Problem("spec.parallelism.chunks", sentence)


@rule(
    "spec.parallelism.stages",
    "spec.parallelism.ways",
    "spec.parallelism.maxRanks",
    cel=(
        Cel(
            "!has(self.parallelism.maxRanks)"
            " || (type(self.parallelism.stages) == string ? 1 : int(self.parallelism.stages))"
            " * (type(self.parallelism.ways) == string ? 1 : int(self.parallelism.ways))"
            " <= self.parallelism.maxRanks",
            "parallelism.maxRanks: must be at least stages x ways, as far as those are numbers.",
        ),
    ),
)
def numbers_leave_room_for_themselves(spec: JobSpec) -> Iterator[Problem]:
    asked = spec.parallelism
    if asked.max_ranks is not None and asked.fixed_ranks > asked.max_ranks:
        cut = f"stages {asked.stages} and ways {asked.ways}"
        yield Problem(
            "spec.parallelism.maxRanks",
            f"{cut} need at least {asked.fixed_ranks} ranks, got {asked.max_ranks}; use fewer stages or ways, or "
            "raise it.",
        )


@rule(
    "spec.parallelism.freshGradientFactor",
    "spec.parallelism.history.gradients",
    cel=(
        Cel(
            "self.parallelism.freshGradientFactor == 1.0 || self.parallelism.history.gradients != 'last'",
            "parallelism.freshGradientFactor: must be 1 where parallelism.history.gradients is last.",
        ),
    ),
)
def gradients_are_made_up_for_once(spec: JobSpec) -> Iterator[Problem]:
    parallelism = spec.parallelism
    asked = parallelism.history.gradients
    if parallelism.fresh_gradient_factor != 1.0 and asked in ("last", "average"):
        yield Problem(
            "spec.parallelism.freshGradientFactor",
            f"makes up for gradients that are dropped, but spec.parallelism.history.gradients is {asked}; "
            "use 1, or drop.",
        )


@rule("spec.parallelism.chunks", "spec.graph.source", "spec.graph.vertices")
def every_chunk_has_a_vertex(spec: JobSpec) -> Iterator[Problem]:
    chunks, vertices = spec.parallelism.chunks, spec.graph.vertices
    if spec.graph.source == "synthetic" and isinstance(chunks, int) and chunks > vertices:
        yield Problem(
            "spec.parallelism.chunks",
            f"{chunks} chunks need at least {chunks} vertices, but spec.graph.vertices is {vertices}.",
        )


@rule("spec.parallelism.history")
def a_history_setting_belongs_to_its_mode(spec: JobSpec) -> Iterator[Problem]:
    history = spec.parallelism.history
    for field, mode in (("decay", "ema"), ("refresh_every", "frozen")):
        about = HistorySpec.model_fields[field]
        if getattr(history, field) != about.default and history.mode != mode:
            yield Problem(
                f"spec.parallelism.history.{about.alias}",
                f"only mode {mode} takes this, but spec.parallelism.history.mode is {history.mode}.",
            )


@rule("spec.parallelism.history.mode", "spec.parallelism.history.correction")
def history_is_corrected_once(spec: JobSpec) -> Iterator[Problem]:
    history = spec.parallelism.history
    if history.correction == "mean" and history.mode not in ("ema", "frozen"):
        yield Problem(
            "spec.parallelism.history.correction",
            f"only modes ema and frozen take mean, but spec.parallelism.history.mode is {history.mode}; mode shift "
            "alone is previous with that correction.",
        )


TRAINING_RULES: tuple[Rule, ...] = (
    only_a_model_of_ones_own_takes_code,
    patience_outlasts_an_evaluation,
    only_sgd_has_momentum,
    only_an_average_has_a_decay,
    a_learning_rate_setting_belongs_to_its_mode,
    the_learning_rate_is_warm_before_the_end,
    every_stage_has_a_layer,
    ways_share_the_chunks_evenly,
    numbers_leave_room_for_themselves,
    gradients_are_made_up_for_once,
    every_chunk_has_a_vertex,
    a_history_setting_belongs_to_its_mode,
    history_is_corrected_once,
)
