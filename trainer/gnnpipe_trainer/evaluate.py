"""`gnnpipe evaluate`: exact accuracies of saved weights, in this one process, without a pipeline."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.models.block import BadModel, Model
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.engine import Engine, make_groups
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.report import Accuracy
from gnnpipe_trainer.run import as_full_batch
from gnnpipe_trainer.validation import evaluate
from gnnpipe_trainer.view import show_error


class BadWeights(ValueError):
    """The file holds no weights, or those of another model; the sentence says why and what to do."""


def evaluate_model(job: GNNPipeJob, model: Path, *, manifest_folder: Path) -> int:
    """Print accuracies as result.json has them; returns the exit code of the contract."""
    try:
        accuracy = accuracy_of(job, model, manifest_folder)
    except (BadGraph, BadModel, BadWeights) as mistake:
        show_error(str(mistake))
        return ExitCode.INVALID
    answer = {"job": job.metadata.name, "accuracy": asdict(accuracy)}
    Console(soft_wrap=True, highlight=False).print_json(json.dumps(answer))
    return ExitCode.DONE


def accuracy_of(job: GNNPipeJob, weights: Path, manifest_folder: Path) -> Accuracy:
    """Train, validation and test accuracy of a model.pt on the manifest's graph.

    The graph keeps the order of its vertices in the run, so sums are added up in the same order as there.
    """
    found = read_weights(weights)
    plan = make_plan(job)
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, manifest_folder)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, manifest_folder)
    put_weights(model, found, weights)
    alone = as_full_batch(job)
    with _only_rank():
        topology = Topology(stages=1, ways=1, rank=0)
        groups = make_groups(topology, job.spec.training.stall_timeout_seconds)
        whole = replace(graph, ways=1)
        engine = Engine(alone, make_plan(alone), whole, model, topology, groups, torch.device("cpu"))
        return evaluate(engine, groups.control)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The state_dict in a file; nothing in the file is executed."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise BadWeights(f"--model: {path} cannot be read: {error.strerror or error}") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise BadWeights(f"--model: {path} is not a file of weights; name the model.pt of a run") from error
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise BadWeights(f"--model: {path} does not hold weights by name; name the model.pt of a run")
    return content


def put_weights(model: Model, weights: dict[str, Tensor], path: Path) -> None:
    """Fill the model, if every weight is there in its shape and none is left over."""
    way_out = "evaluate with the manifest that it was trained with"
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in weights:
            raise BadWeights(f"--model: {path} has no {name}, which spec.model asks for; {way_out}")
        there, here = list(weights[name].shape), list(tensor.shape)
        if there != here:
            raise BadWeights(
                f"--model: {name} is {there} in {path}, but {here} by spec.model and the graph; {way_out}"
            )
    for name in weights:
        if name not in expected:
            raise BadWeights(f"--model: {path} has {name}, which spec.model knows nothing of; {way_out}")
    model.load_state_dict(weights)


@contextmanager
def _only_rank() -> Iterator[None]:
    """A process group of one: the engine is the very one that trains."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
