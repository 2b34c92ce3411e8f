"""What tests let ranks do: train a few epochs with the real engine and hand out every gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_trainer.checkpoint.packed import bytes_of
from gnnpipe_trainer.checkpoint.state import TrainingState
from gnnpipe_trainer.cutting import agree_on_cut
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline import thrift
from gnnpipe_trainer.pipeline.engine import Engine, make_groups
from gnnpipe_trainer.pipeline.schedule import slot_count
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import PIPELINE, Groups, Traffic
from gnnpipe_trainer.pipeline.zeros import Border, NonZeroActivations, NonZeroGradients
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.planning.talk import talk
from gnnpipe_trainer.staleness.settle import settled
from gnnpipe_trainer.validation import evaluate
from gnnpipe_trainer.weights import Best, stage_state

Arrays = dict[str, Any]


@dataclass
class Trained:
    losses: list[float] = field(default_factory=list)  # this rank's share
    gradients: list[Arrays] = field(default_factory=list)  # per epoch, of this rank's parameters
    sent: list[dict[str, int]] = field(default_factory=list)
    accuracy: Any = None


def engine_here(manifest: dict[str, Any], folder: str) -> tuple[Engine, torch.optim.Optimizer]:
    """This rank's, with history filled as the manifest says."""
    job = parse_job(manifest)
    plan = make_plan(job)
    topology = Topology(plan.stages, plan.ways, dist.get_rank())
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, Path(folder), Path(folder) / "cache")
    torch.manual_seed(job.spec.training.seed)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, Path(folder))
    engine = Engine(job, plan, graph, model, topology, make_groups(topology, 60), torch.device("cpu"))
    if engine.slots > 1 and job.spec.parallelism.history.warmup == "exact":
        engine.exact_pass(fill_history=True)
    return engine, make_optimizer(job.spec.training, engine.parameters)


def train_epochs(
    manifest: dict[str, Any], folder: str, epochs: int, decide_zeros_after: int | None = None
) -> Trained:
    """`decide_zeros_after` is an epoch of which all ranks say that it sent far more than it did."""
    engine, optimizer = engine_here(manifest, folder)
    names = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    trained = Trained()
    for epoch in range(epochs):
        times = engine.train_epoch(epoch)
        trained.losses.append(times.loss)
        trained.sent.append(dict(times.traffic.sent))
        trained.gradients.append({names[id(p)]: _array(p) for p in engine.parameters})
        optimizer.step()
        optimizer.zero_grad()
        if epoch == decide_zeros_after:
            times.traffic.sent[PIPELINE] *= 10**9
            thrift.decide(engine, times)
    trained.accuracy = evaluate(engine, engine.groups.control)
    return trained


@dataclass
class LentHistory:
    """One epoch's, as a checkpoint gets it between forward and backward."""

    copied: bool = True
    bytes_between: bytes = b""
    bytes_at_end: bytes = b""  # of the same memory
    read_next: bytes = b""  # by the next epoch


def lend_histories(manifest: dict[str, Any], folder: str, epochs: int) -> list[LentHistory]:
    engine, optimizer = engine_here(manifest, folder)
    state = TrainingState(engine, optimizer, Best(stage_state(engine, engine.topology.stage)))
    histories = [gather.history for gather in engine.stage.gathers if gather.history is not None]
    lent: list[LentHistory] = []
    for epoch in range(epochs):
        seen, memory = LentHistory(), list[torch.Tensor]()

        def between(seen: LentHistory = seen, memory: list[torch.Tensor] = memory) -> None:
            memory.extend(state.history(between=True).arrived().buffers.values())
            seen.copied = memory[0].data_ptr() != histories[0].coming.data_ptr()
            seen.bytes_between = bytes(bytes_of(memory[0]))

        engine.train_epoch(epoch, between)
        optimizer.step()
        optimizer.zero_grad()
        seen.bytes_at_end = bytes(bytes_of(memory[0]))
        seen.read_next = b"".join(bytes(bytes_of(history.live)) for history in histories)
        lent.append(seen)
    return lent


def _array(parameter: torch.nn.Parameter) -> Any:
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient.detach().clone().numpy()


def buffer_rows(manifest: dict[str, Any], folder: str) -> int:
    """Rows of the first history buffer of this rank."""
    job = parse_job(manifest)
    plan = make_plan(job)
    topology = Topology(plan.stages, plan.ways, dist.get_rank())
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, Path(folder), Path(folder) / "cache")
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, Path(folder))
    engine = Engine(job, plan, graph, model, topology, make_groups(topology, 60), torch.device("cpu"))
    return next(g.history.live.shape[0] for g in engine.stage.gathers if g.history is not None)


def cuda_was_initialised(manifest: dict[str, Any], folder: str) -> bool:
    train_epochs(manifest, folder, 2)
    return torch.cuda.is_initialized()


def agreed_cuts(manifest: dict[str, Any], folder: str) -> tuple[int, ...]:
    _, plan, model, shard, groups = _before_the_engine(manifest, folder)
    return agree_on_cut(plan, model, shard, Path(folder) / "checkpoints", groups.control).layers_per_stage


def cross_a_border_without_zeros(wire: str, shares: list[float]) -> list[tuple[Any, Any]]:
    """One slot in several epochs, with so many of its numbers not zero.

    Rank 0 sends activations, rank 1 gradients. Each returns (expected, received) of every epoch.
    """
    rank, rows, width = dist.get_rank(), 40, 16
    groups = make_groups(Topology(2, 1, rank), 60)
    dtype, cpu, traffic, border = getattr(torch, wire), torch.device("cpu"), Traffic(), Border()
    forward = NonZeroActivations(
        1 - rank, groups.activations, traffic, dtype, cpu, border=border, control=groups.control
    )
    backward = NonZeroGradients(1 - rank, groups.gradients, traffic, dtype, cpu, border=border)
    pairs = []
    for epoch, share in enumerate(shares):
        torch.manual_seed(epoch)
        marks = torch.rand(rows, width) < share
        activations, gradients = ((torch.randn(rows, width) * marks).to(dtype).float() for _ in range(2))
        noise = torch.randn(rows, width) * ~marks  # gradients that stop at zeros: need not arrive
        border.start_epoch()
        if rank == 0:
            forward.send((activations,), slot=0)
            backward.post(rows * width, slot=0)
            received = backward.receive(rows, (width,), torch.float32, slot=0)[0]
            expected = gradients
        else:
            forward.post(rows * width, slot=0)
            received = forward.receive(rows, (width,), torch.float32, slot=0)[0]
            backward.send((gradients + noise,), slot=0)
            expected = activations
        forward.flush()
        backward.flush()
        pairs.append((expected.numpy(), received.numpy()))
    return pairs


def talk_here(pipeline: dict[str, Any], ways: dict[str, Any]) -> dict[str, Any]:
    """What a calibration finds about messages, with these two jobs in place of its own."""
    return talk(dist.get_rank(), [Bench(parse_job(pipeline))], [Bench(parse_job(ways))])


def settled_choices(manifest: dict[str, Any], folder: str) -> tuple[str, str, str]:
    """The gradients, the correction, and whether weights are averaged."""
    job, plan, model, shard, groups = _before_the_engine(manifest, folder)
    slots = slot_count(plan.stages, plan.ways, plan.chunks)
    spec = settled(job, slots, model, [shard], groups.control).spec
    history = spec.parallelism.history
    return history.gradients, history.correction, spec.training.averaging.mode


def _before_the_engine(
    manifest: dict[str, Any], folder: str
) -> tuple[GNNPipeJob, Plan, Model, Shard, Groups]:
    job = parse_job(manifest)
    plan = make_plan(job)
    topology = Topology(plan.stages, plan.ways, dist.get_rank())
    graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, Path(folder), Path(folder) / "cache")
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, Path(folder))
    shard = Shard(graph, topology.way, torch.float32, torch.device("cpu"))
    return job, plan, model, shard, make_groups(topology, 60)
