"""The modes that are compared: what each one is, and which jobs it can run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from gnnpipe_api.job import GNNPipeJob, LearningRateSchedule
from gnnpipe_trainer.bench import bare
from gnnpipe_trainer.bench.link import bits_per_second

CHUNKS = 16

EDGE_INDEX = "torch-geometric, edge_index"
CSR = "torch-geometric, CSR, cached"
DGL = "DGL 1.1.3"
BARE = "bare loop of the same kernels"
ONE_RANK = "1 rank, 1 chunk"
BY_TURNS = "engine by turns with the bare loop"
TWO_AT_ONCE = "two separate jobs of one rank, at once"
SKIPPED, SENT, UNSPLIT = "zeros skipped", "every number sent", "W not split"
SLOW_EPOCHS = 7  # of a mode that is measured in one round only: 2 to warm up, 5 for a median


@dataclass(frozen=True)
class Mode:
    """One row of the table."""

    name: str
    program: str | None = (
        None  # a module of this package that trains in one process; None: gnnpipe's own ranks
    )
    options: dict[str, str] = field(default_factory=dict)  # of the program
    parallelism: dict[str, Any] = field(default_factory=lambda: {"stages": 1, "ways": 1, "chunks": 1})
    rate: str | None = None  # of the emulated link between the two halves of the ranks
    copies: int = 1  # of the program, side by side: what cores that are all busy cost each other
    slow: bool = False  # seconds per epoch, and far from its bar: one round will do

    @property
    def ranks(self) -> int:
        return int(self.parallelism["stages"] * self.parallelism["ways"])

    @property
    def title(self) -> str:
        return self.name if self.rate is None else f"{self.name}, {self.rate}"

    def job(self, job: GNNPipeJob, epochs: int) -> GNNPipeJob:
        """The same job in this mode. Evaluation and checkpoints wait until the end: they are not measured. Nor is what
        a learning rate does, and a warm-up may be longer than a measurement."""
        spec = job.spec
        parallelism = spec.parallelism.model_copy(update=self.parallelism)
        training = spec.training.model_copy(
            update={"epochs": epochs, "evaluate_every": epochs, "early_stopping": None, "device": "cpu"}
            | {"learning_rate_schedule": LearningRateSchedule()}
        )
        checkpoint = spec.checkpoint.model_copy(update={"every_epochs": epochs})
        update = {"parallelism": parallelism, "training": training, "checkpoint": checkpoint}
        return job.model_copy(update={"spec": spec.model_copy(update=update)})


def modes_for(job: GNNPipeJob, ranks: int, rates: list[str], with_dgl: bool) -> list[Mode]:
    """Everything that can train this job, in the order of the table."""
    single = single_process_modes(job, with_dgl)
    every = pipeline_modes(ranks)
    if not job.spec.model.is_built_in or job.spec.model.kind == "resgcn":
        every = [mode for mode in every if SKIPPED not in mode.name and SENT not in mode.name]
    parallel = [mode for mode in every if SENT not in mode.name]  # as the default on a quick link
    crossing = [mode for mode in every if UNSPLIT not in mode.name and SKIPPED not in mode.name]
    linked = [_linked(mode, rate) for rate in rates for mode in crossing]
    if ranks == 4:
        hybrid = hybrid_mode()
        parallel.insert(2, hybrid)
        linked += [_linked(hybrid, rate) for rate in rates]
    fitting = [mode for mode in [*parallel, *linked] if mode.parallelism["stages"] <= job.spec.model.layers]
    return [*single, *fitting]


def _linked(mode: Mode, rate: str) -> Mode:
    """Graph parallelism waits for most of an epoch on a link of less than a gigabit."""
    return replace(mode, rate=rate, slow=mode.parallelism["stages"] == 1 and bits_per_second(rate) < 1e9)


def single_process_modes(job: GNNPipeJob, with_dgl: bool) -> list[Mode]:
    model = job.spec.model
    plain_enough = model.kind in bare.KINDS and model.options.get("norm", "none") == "none"
    modes: list[Mode] = []
    if model.is_built_in:
        modes.append(Mode(EDGE_INDEX, "plain", {"adjacency": "edge_index"}, slow=True))
    if model.is_built_in and model.kind != "gat":  # attention has no fixed matrix to keep as CSR
        modes.append(Mode(CSR, "plain", {"adjacency": "csr"}, slow=True))
    if with_dgl and plain_enough:
        modes.append(Mode(DGL, "dgl_process"))
    if plain_enough and model.dropout == 0:
        modes.append(Mode(BARE, "bare"))
        modes.append(Mode(BY_TURNS, "by_turns", {"slots": "whole"}))
    chunked = {"stages": 1, "ways": 1, "chunks": CHUNKS}
    return [
        *modes,
        Mode(ONE_RANK, "one_rank", {"slots": "whole"}),
        Mode(TWO_AT_ONCE, "one_rank", {"slots": "whole"}, copies=2),
        Mode(f"1 rank, {CHUNKS} chunks", "one_rank", {"slots": "whole"}, chunked),
        Mode(f"1 rank, {CHUNKS} chunks in turn", "one_rank", {"slots": "in turn"}, chunked),
    ]


def pipeline_modes(ranks: int) -> list[Mode]:
    """The pipeline and its variants, and graph parallelism, over as many ranks."""
    if ranks == 1:
        return []
    pipeline = {"stages": ranks, "ways": 1, "chunks": max(CHUNKS, 4 * ranks), "split_backward": True}
    return [
        Mode(f"pipeline, {ranks} stages", parallelism=pipeline),
        Mode(f"pipeline, {ranks} stages, {UNSPLIT}", parallelism={**pipeline, "split_backward": False}),
        Mode(f"pipeline, {ranks} stages, {SKIPPED}", parallelism={**pipeline, "wire_zeros": "skip"}),
        Mode(f"pipeline, {ranks} stages, {SENT}", parallelism={**pipeline, "wire_zeros": "send"}),
        Mode(f"graph, {ranks} ways", parallelism={"stages": 1, "ways": ranks, "chunks": ranks}),
    ]


def hybrid_mode() -> Mode:
    return Mode("hybrid, 2 stages x 2 ways", parallelism={"stages": 2, "ways": 2, "chunks": 2 * CHUNKS})
