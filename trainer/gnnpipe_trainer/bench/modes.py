"""The modes that are compared: what each one is, and which jobs it can run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.bench import bare

CHUNKS = 16

EDGE_INDEX = "torch-geometric, edge_index"
CSR = "torch-geometric, CSR, cached"
DGL = "DGL 1.1.3"
BARE = "bare loop of the same kernels"
ONE_RANK = "1 rank, 1 chunk"


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

    @property
    def ranks(self) -> int:
        return int(self.parallelism["stages"] * self.parallelism["ways"])

    @property
    def title(self) -> str:
        return self.name if self.rate is None else f"{self.name}, {self.rate}"

    def job(self, job: GNNPipeJob, epochs: int) -> GNNPipeJob:
        """The same job in this mode. Evaluation and checkpoints wait until the end: they are not measured."""
        spec = job.spec
        parallelism = spec.parallelism.model_copy(update=self.parallelism)
        training = spec.training.model_copy(
            update={"epochs": epochs, "evaluate_every": epochs, "early_stopping": None, "device": "cpu"}
        )
        checkpoint = spec.checkpoint.model_copy(update={"every_epochs": epochs})
        update = {"parallelism": parallelism, "training": training, "checkpoint": checkpoint}
        return job.model_copy(update={"spec": spec.model_copy(update=update)})


def modes_for(job: GNNPipeJob, ranks: int, rates: list[str], with_dgl: bool) -> list[Mode]:
    """Everything that can train this job, in the order of the table."""
    single = single_process_modes(job, with_dgl)
    parallel = pipeline_modes(ranks)
    crossing = [
        mode for mode in parallel if mode.name in (f"pipeline, {ranks} stages", f"graph, {ranks} ways")
    ]
    linked = [Mode(m.name, parallelism=m.parallelism, rate=rate) for rate in rates for m in crossing]
    if ranks == 4:
        hybrid = hybrid_mode()
        parallel.insert(2, hybrid)
        linked += [Mode(hybrid.name, parallelism=hybrid.parallelism, rate=rate) for rate in rates]
    fitting = [mode for mode in [*parallel, *linked] if mode.parallelism["stages"] <= job.spec.model.layers]
    return [*single, *fitting]


def single_process_modes(job: GNNPipeJob, with_dgl: bool) -> list[Mode]:
    model = job.spec.model
    plain_enough = model.kind in bare.KINDS and model.options.get("norm", "none") == "none"
    modes: list[Mode] = []
    if model.is_built_in:
        modes.append(Mode(EDGE_INDEX, "plain", {"adjacency": "edge_index"}))
    if model.is_built_in and model.kind != "gat":  # attention has no fixed matrix to keep as CSR
        modes.append(Mode(CSR, "plain", {"adjacency": "csr"}))
    if with_dgl and plain_enough:
        modes.append(Mode(DGL, "dgl_process"))
    if plain_enough and model.dropout == 0:
        modes.append(Mode(BARE, "bare"))
    chunked = {"stages": 1, "ways": 1, "chunks": CHUNKS}
    return [
        *modes,
        Mode(ONE_RANK, "one_rank", {"slots": "whole"}),
        Mode(f"1 rank, {CHUNKS} chunks", "one_rank", {"slots": "whole"}, chunked),
        Mode(f"1 rank, {CHUNKS} chunks in turn", "one_rank", {"slots": "in turn"}, chunked),
    ]


def pipeline_modes(ranks: int) -> list[Mode]:
    """The pipeline with and without its W split, and graph parallelism, over as many ranks."""
    if ranks == 1:
        return []
    pipeline = {"stages": ranks, "ways": 1, "chunks": max(CHUNKS, 4 * ranks)}
    return [
        Mode(f"pipeline, {ranks} stages", parallelism={**pipeline, "split_backward": True}),
        Mode(f"pipeline, {ranks} stages, W not split", parallelism={**pipeline, "split_backward": False}),
        Mode(f"graph, {ranks} ways", parallelism={"stages": 1, "ways": ranks, "chunks": ranks}),
    ]


def hybrid_mode() -> Mode:
    return Mode("hybrid, 2 stages x 2 ways", parallelism={"stages": 2, "ways": 2, "chunks": 2 * CHUNKS})
