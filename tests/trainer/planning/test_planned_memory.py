"""What the planner says a rank keeps is what the engine keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.chunks import cut
from gnnpipe_trainer.graph.sources import load_graph
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline import engine as trainer
from gnnpipe_trainer.pipeline import epoch_run
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.segment import HandSegment, Segment
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups
from gnnpipe_trainer.planning import memory
from gnnpipe_trainer.planning.main import make_planner
from gnnpipe_trainer.staleness.carry import carried, with_history
from gnnpipe_trainer.staleness.settle import traits_of
from gnnpipe_trainer.staleness.share import StaleShare

Jobs = Callable[..., GNNPipeJob]


def engine_of(job: GNNPipeJob, stage: int) -> trainer.Engine:
    """A rank's engine in this process; it is given all it would receive, so nobody is needed to send."""
    plan = make_plan(job)
    graph = cut(load_graph(job.spec.graph, Path()), plan.ways, plan.chunks)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes)
    nobody = Groups(*[cast(Any, None)] * 4)
    shard = Shard(graph, 0, torch.float32, torch.device("cpu"))
    stale, edges = StaleShare(shard, None).expect()
    job = with_history(job, carried(job.spec.parallelism, traits_of(model), stale / edges), "none")
    return trainer.Engine(
        job, plan, graph, model, Topology(plan.stages, 1, stage), nobody, torch.device("cpu")
    )


def states_of(segment: Segment | HandSegment) -> Iterator[Tensor | None]:
    """What a segment holds on to, besides what autograd saves for it."""
    if segment.leaves is not None:
        yield from (segment.leaves.gathered, segment.leaves.rows)
    if isinstance(segment, HandSegment):
        yield from (segment.own, segment.result)
        return
    results = [t for t in (*(segment.outputs or ()), segment.message) if t is not None]
    yield from (*segment.inputs, *results)
    nodes: list[Any] = [t.grad_fn for t in results]
    while nodes:
        node = nodes.pop()
        if node is not None:
            yield node.kept.tensor if getattr(node, "kept", None) else None  # of a ReLU
            nodes += [before for before, _ in node.next_functions]


def kept_bytes(engine: trainer.Engine) -> int:
    """Storages alive between the forward passes of all slots and the backward ones."""
    engine.stage.start_epoch(0, Freshness(engine.shard, list(range(engine.slots))))
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.detach())  # what is saved stays where it is when a message moves to history
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for slot in range(engine.slots):
            rows = engine.shard.inward.rows_of(slot)
            engine.stage.forward(
                slot, tuple(torch.randn(rows.stop - rows.start, w) for w in engine.widths_in)
            )
    segments = [segment for of_slot in engine.stage._segments.values() for segment in of_slot]
    kept += [tensor for segment in segments for tensor in states_of(segment) if tensor is not None]
    elsewhere = [*engine.model.parameters(), engine.shard.features]
    elsewhere += [gather.sum for gather in engine.stage.gathers if hasattr(gather, "sum")]
    if engine.slots > 1:  # messages lie in history, which is there without them and counted for itself
        elsewhere += [gather.history.live for gather in engine.stage.gathers if gather.history is not None]
    alive = {tensor.untyped_storage().data_ptr(): tensor for tensor in kept}
    for tensor in elsewhere:
        alive.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(tensor.untyped_storage().nbytes() for tensor in alive.values())


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("dropout", [0.5, 0.0])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gcn", {}),
        ("gcn", {"norm": "layer"}),
        ("sage", {}),
        ("gin", {}),
        ("gcnii", {}),
        ("resgcn", {}),
        ("gat", {}),
        ("gat", {"heads": 2}),
    ],
    ids=str,
)
def test_activations_kept_for_backward_are_counted_to_a_few_percent(
    kind: str, options: dict[str, Any], dropout: float, stage: int, job: Jobs
) -> None:
    model = {"hidden": 16, "dropout": dropout, "options": options}
    planned = job(kind, 6, stages=2, chunks=4, model=model)
    planner = make_planner(planned, Path())
    engine = engine_of(planned, stage)
    per_vertex, per_edge = memory.kept_columns(planner.shape, 3 * stage, 3)
    rows, entries = engine.shard.inward.own, len(engine.shard.inward.columns)
    expected = 4 * (rows * per_vertex + (rows + entries) * per_edge)
    assert expected == pytest.approx(kept_bytes(engine), rel=0.12 if kind == "gat" else 0.02)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("dropout", [0.5, 0.0])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gcnii", "resgcn"])
def test_messages_that_do_not_lie_in_history_are_counted(
    kind: str, dropout: float, stages: int, job: Jobs
) -> None:
    model, narrow = {"hidden": 16, "dropout": dropout}, {"historyPrecision": "bf16"}
    planned = job(kind, 6, stages=stages, chunks=4 if stages > 1 else 1, model=model, parallelism=narrow)
    shape, layers = make_planner(planned, Path()).shape, 6 // stages
    for stage in range(stages):
        engine = engine_of(planned, stage)
        per_vertex, _ = memory.kept_columns(shape, layers * stage, layers, in_history=False)
        expected = 4 * engine.shard.inward.own * per_vertex
        assert expected == pytest.approx(kept_bytes(engine), rel=0.02)


@pytest.mark.parametrize("parallelism", [{}, {"historyPrecision": "bf16"}], ids=str)
@pytest.mark.parametrize("dropout", [0.5, 0.0])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gcnii", "resgcn", "gat"])
def test_what_is_kept_to_be_computed_from_again_is_counted_exactly(
    kind: str, dropout: float, parallelism: dict[str, Any], job: Jobs
) -> None:
    asked = {"recompute": True} | parallelism
    planned = job(kind, 6, stages=2, chunks=4, model={"hidden": 16, "dropout": dropout}, parallelism=asked)
    planner, plan = make_planner(planned, Path()), make_plan(planned)
    halo = planner.graph.cut(plan.ways, plan.chunks, plan.stages).chunk_halo.sum()
    for stage in (0, 1):
        engine = engine_of(planned, stage)
        per_vertex, per_halo = memory.recomputing_columns(planner.shape, 3 * stage, 3, not parallelism)
        assert kept_bytes(engine) == 4 * (engine.shard.inward.own * per_vertex + halo * per_halo)


def test_receives_ahead_is_the_engines() -> None:
    assert memory.RECEIVES_AHEAD == epoch_run.RECEIVES_AHEAD


def test_a_job_that_warms_up_needs_room_for_the_whole_graph_at_once(job: Jobs) -> None:
    def buffers(chunks: int, warmup_epochs: int) -> list[float]:
        history = {"warmupEpochs": warmup_epochs}
        planned = job("resgcn", 4, stages=2, chunks=chunks, parallelism={"history": history})
        return [stage.buffers for stage in make_planner(planned, Path()).forecast(make_plan(planned)).memory]

    assert buffers(chunks=16, warmup_epochs=1) == buffers(chunks=8, warmup_epochs=9)
    assert all(warm > cold for warm, cold in zip(buffers(16, 1), buffers(16, 0), strict=True))


def test_history_and_gradient_buffers_are_counted_exactly(job: Jobs) -> None:
    modes = ({"mode": "ema"}, {"mode": "shift"}, {"gradients": "average"})
    for parallelism in (*({"history": asked} for asked in modes), {"historyPrecision": "bf16"}):
        planned = job("resgcn", 4, stages=2, chunks=4, parallelism=parallelism)
        planner = make_planner(planned, Path())
        forecast = planner.forecast(make_plan(planned))
        for stage in (0, 1):
            gathers = [cast(Any, gather) for gather in engine_of(planned, stage).stage.gathers]
            histories = [gather.history for gather in gathers if gather.history is not None]
            kept = sum(t.nbytes for h in histories for t in (h.live, h._next) if t is not None)
            assert forecast.memory[stage].history == kept
            buffers = [g.gradients for g in gathers]
            buffers += [g.average for g in gathers if g.history.averages_gradients]
            assert forecast.memory[stage].gradients == sum(t.nbytes for t in buffers)


def test_averaged_weights_are_counted_where_they_will_be_averaged(job: Jobs) -> None:
    def weights(mode: str, chunks: int = 4) -> list[float]:
        asked = {"training": {"averaging": {"mode": mode}}, "graph": {"homophily": 0.3}}
        planned = job("gcn", 4, stages=2, chunks=chunks, **asked)
        return [stage.weights for stage in make_planner(planned, Path()).forecast(make_plan(planned)).memory]

    assert weights("auto", chunks=2) == weights(
        "none", chunks=2
    )  # in two halves a quarter of the edges is stale
    assert weights("auto", chunks=16) == weights("tail", chunks=16)
    planned = job("gcn", 4, stages=2, chunks=4)
    shape = make_planner(planned, Path()).shape
    for mode, copies in (("ema", 2), ("tail", 3)):  # averages, and the last weights while one is evaluated
        more = [b - a for a, b in zip(weights("none"), weights(mode), strict=True)]
        assert more == [4 * copies * shape.parameters(2 * stage, 2) for stage in (0, 1)]


@pytest.mark.parametrize("kind", ["gcn", "gcnii", "resgcn", "gat"])
@pytest.mark.parametrize(
    "parallelism",
    [
        {},
        {"freshGradientFactor": 2.0},
        *({"history": {"gradients": asked}} for asked in ("drop", "last", "average")),
    ],
    ids=str,
)
def test_edges_are_sorted_out_where_the_engine_does(
    job: Jobs, kind: str, parallelism: dict[str, Any]
) -> None:
    planned = job(kind, 4, stages=2, chunks=4, parallelism=parallelism)
    planner, plan = make_planner(planned, Path()), make_plan(planned)
    cut = planner.graph.cut(plan.ways, plan.chunks, plan.stages)
    for stage, work in enumerate(planner.stage_works(plan)):
        assert bool(work.entries_to_sort_out(cut)) == bool(engine_of(planned, stage).edge_kinds)


def test_less_history_and_recomputing_need_less_memory(job: Jobs) -> None:
    def peak(**parallelism: Any) -> float:
        planned = job("gcnii", 8, stages=2, chunks=4, parallelism=parallelism)
        forecast = make_planner(planned, Path()).forecast(make_plan(planned))
        return sum(m.history + m.activations for m in forecast.memory)

    assert peak(history={"mode": "shift"}) < peak()
    assert peak(recompute=True) < peak()
