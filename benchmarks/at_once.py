"""The pipeline's arithmetic without the pipeline: all slots of an epoch in one go, in one process.

What slots compute in turn is, over a whole epoch, one sum per block: fresh edges times the fresh rows plus stale
edges times history; and backward the same, without the stale edges or with the last epoch's gradient there. On small
graphs, where a slot is a few hundred vertices, that is several times cheaper than the slots themselves, so that
accuracies can be measured with many seeds. tests/trainer/bench/test_at_once.py holds it to the engine's gradients.
Only dropout draws other random numbers. Convolutions that are no weighted sums cannot be taken so: there the engine
goes through its slots in turn, in this one process.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan, make_plan
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.kernels import Entry
from gnnpipe_trainer.models.block import ConvBlock, EdgeWeights
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.pipeline.engine import DTYPES, Engine, make_groups
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.gather import WeightedSum
from gnnpipe_trainer.pipeline.history import side_by_side
from gnnpipe_trainer.pipeline.leaves import Leaves
from gnnpipe_trainer.pipeline.schedule import slot_count, slot_order
from gnnpipe_trainer.pipeline.shard import Matrix, Shard
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.staleness.settle import settled, stale_edges

STALL_SECONDS = 120


class EpochEdges(Freshness):
    """Which edges read fresh rows in this epoch, with a position for every chunk of every way."""

    def __init__(self, shard: Shard, positions: Tensor, factor: float, ways: int = 1) -> None:
        super().__init__(shard, positions.tolist())
        self.positions, self.factor, self.ways = positions.to(torch.int32), factor, ways
        self._forward: dict[EdgeWeights, tuple[Matrix, Matrix]] = {}
        self._cut: dict[EdgeWeights, Matrix] = {}

    def forward_matrices(self, kind: EdgeWeights) -> tuple[Matrix, Matrix]:
        """Edges that read fresh rows, and edges that read history."""
        if kind not in self._forward:
            matrix = self.shard.matrix(kind, transposed=False)
            reader, source = self._entry_positions(kind, transposed=False)
            self._forward[kind] = matrix.keep(source <= reader), matrix.keep(source > reader)
        return self._forward[kind]

    def backward_matrix(self, kind: EdgeWeights) -> Matrix:
        if kind not in self._backward:
            matrix = self.shard.matrix(kind, transposed=True)
            source, reader = self._entry_positions(kind, transposed=True)
            weights = torch.where(source < reader, matrix.weights * self.factor, matrix.weights)
            louder = Matrix(matrix.indptr, matrix.columns, weights, matrix.own)
            self._backward[kind] = louder.keep(source <= reader)
        return self._backward[kind]

    def cut_matrix(self, kind: EdgeWeights) -> Matrix:
        """Edges through which no gradient flows back, as backward would use them."""
        if kind not in self._cut:
            source, reader = self._entry_positions(kind, transposed=True)
            self._cut[kind] = self.shard.matrix(kind, transposed=True).keep(source > reader)
        return self._cut[kind]

    def stale_share(self, kind: EdgeWeights) -> float:
        """Of the weight of all edges."""
        fresh, stale = (float(m.weights.sum()) for m in self.forward_matrices(kind))
        return stale / (fresh + stale)

    def row_places(self) -> tuple[Tensor, Tensor]:
        """[V] the way of each vertex, and the position of the slot it belongs to."""
        chunks = torch.from_numpy(self.shard.inward.slot_of_row).long()
        return chunks // (len(self.positions) // self.ways), self.positions[chunks].long()


class SumAtOnce(WeightedSum):
    """The weighted sum of all slots together."""

    freshness: EpochEdges
    last: Tensor | None = None  # the sums' gradient in the epoch before, or its average over the epochs

    def entry(self, slot: int | None) -> Entry | None:
        """History is read before anything is pushed into it."""
        return None

    def read(self, slot: int | None, message: Tensor, pushed: bool = False) -> Leaves:
        message = message.detach()
        fresh, stale = self.freshness.forward_matrices(self.kind)
        everyone = self.shard.inward.rows_of(None)
        gathered = stale.times(self.history.live, everyone)
        if self.history.corrects_mean:
            gathered += self.freshness.stale_weight(self.kind) * self._shifts(message)
        self.history.push(everyone, message)
        gathered += fresh.times(message, everyone)
        return Leaves(gathered, message)

    def _shifts(self, message: Tensor) -> Tensor:
        """[V, width] the mean of (fresh - historical) over the rows of a reader's way up to its position."""
        ways, positions = self.freshness.row_places()
        sums = message.new_zeros(self.freshness.ways, len(self.freshness.positions), message.shape[1])
        sums.index_put_((ways, positions), message - self.history.live, accumulate=True)
        rows = message.new_zeros(sums.shape[:2])
        rows.index_put_((ways, positions), torch.ones_like(message[:, 0]), accumulate=True)
        means: Tensor = sums.cumsum(1) / rows.cumsum(1).clamp(min=1).unsqueeze(2)
        return means[ways, positions]

    def gradient(self, slot: int | None, leaves: Leaves) -> Tensor | None:
        grad = leaves.d_gathered
        gradient = torch.zeros_like(leaves.rows) if grad is None else self._transposed(grad)
        if leaves.d_rows is not None:
            gradient += leaves.d_rows
        return gradient

    def _transposed(self, gradient: Tensor) -> Tensor:
        rows = self.shard.outward.rows_of(None)
        total = self.freshness.backward_matrix(self.kind).times(gradient.contiguous(), rows)
        if self.history.keeps_gradients:
            if self.last is not None:
                total += self.freshness.cut_matrix(self.kind).times(self.last, rows)
            self.last = self._kept(gradient.contiguous())
        return total

    def _kept(self, gradient: Tensor) -> Tensor:
        """What the next epoch is to take for this one's."""
        if not self.history.averages_gradients:
            return gradient
        before = torch.zeros_like(gradient) if self.last is None else self.last
        return before.lerp(gradient, 1.0 - self.history.spec.decay)


@dataclass
class AtOnce:
    """One job's training in this process; torch.distributed must be up with a world of one."""

    job: GNNPipeJob
    plan: Plan  # as in the manifest, stages and ways and all
    engine: Engine  # of one rank, which holds the model and does the exact passes
    slots: int
    in_turn: bool  # blocks are convolutions of others, so slots are taken one by one
    stale_edges: float  # the share of all edges that read history

    @staticmethod
    def of(job: GNNPipeJob, folder: Path, sums: type[SumAtOnce] = SumAtOnce) -> AtOnce:
        """`sums` is how blocks read their neighbours; others than the pipeline's are for experiments."""
        plan = make_plan(job)
        graph = chunked_graph(job.spec.graph, plan.ways, plan.chunks, folder)
        slots = slot_count(plan.stages, plan.ways, plan.chunks)
        whole = dataclasses.replace(graph, ways=1)
        torch.manual_seed(job.spec.training.seed)
        model = build_model(job.spec.model, graph.num_features, graph.num_classes, folder)
        topology, device = Topology(1, 1, 0), torch.device("cpu")
        dtype, groups = DTYPES[job.spec.training.precision], make_groups(topology, STALL_SECONDS)
        ways = [Shard(graph, way, dtype, device) for way in range(plan.ways)]
        job = settled(job, slots, model, ways, groups.control)
        one = job.model_copy(
            update={"spec": job.spec.model_copy(update={"parallelism": _one_rank(job, plan)})}
        )
        shard = Shard(whole, 0, dtype, device)
        in_turn = any(isinstance(block, ConvBlock) for block in model.block_list())
        if in_turn and plan.ways > 1 and slots > 1:
            raise ValueError(
                f"{job.spec.model.kind} is no weighted sum: with several ways it needs real ranks"
            )
        engine = Engine(
            one, make_plan(one), whole, model, topology, groups, device, shard, slots if in_turn else None
        )
        stale = stale_edges(ways, groups.control) if slots > 1 else 0.0
        trained = AtOnce(job, plan, engine, slots, in_turn, stale)
        if not in_turn and slots > 1:
            trained._put_sums(sums)
        if slots > 1 and job.spec.parallelism.history.warmup == "exact":
            engine.exact_pass(fill_history=True)
        return trained

    def _put_sums(self, sums: type[SumAtOnce]) -> None:
        stage, parallelism = self.engine.stage, self.job.spec.parallelism
        for index, gather in enumerate(stage.gathers):
            if gather.history is None:
                continue
            rows, width, dtype = gather.shard.inward.rows, gather.block.message_width, self.engine.dtype
            (history,) = side_by_side(rows, [width], parallelism.history, dtype, self.engine.device)
            stage.gathers[index] = sums(gather.block, gather.shard, history, self.engine.ways, 1.0)

    def edges(self, epoch: int) -> EpochEdges:
        """Chunks of different ways that share a slot share a position; while training warms up, all chunks do."""
        parallelism, chunks = self.job.spec.parallelism, self.plan.chunks
        if epoch < parallelism.history.warmup_epochs:
            return EpochEdges(self.engine.shard, torch.zeros(chunks, dtype=torch.int64), 1.0, self.plan.ways)
        order = slot_order(self.slots, self.job.spec.training.seed, epoch, parallelism.shuffle_chunks)
        positions = torch.empty(self.slots, dtype=torch.int64)
        positions[torch.tensor(order)] = torch.arange(self.slots)
        every_chunk = positions[torch.arange(chunks) % self.slots]
        factor = parallelism.fresh_gradient_factor
        return EpochEdges(self.engine.shard, every_chunk, factor, self.plan.ways)

    def train_epoch(self, epoch: int) -> float:
        """The loss; gradients are left on the parameters."""
        if self.slots == 1 or self.in_turn:
            return self.engine.train_epoch(epoch).loss
        return self._run(epoch, self.edges(epoch))

    def _run(self, epoch: int, edges: EpochEdges) -> float:
        stage = self.engine.stage
        stage.start_epoch(epoch, edges)
        (loss,) = stage.forward(None, ())
        stage.backward(None, (torch.ones((), dtype=self.engine.dtype),))
        stage.end_epoch()
        return float(loss)


def _one_rank(job: GNNPipeJob, plan: Plan) -> object:
    update = {"stages": 1, "ways": 1, "chunks": plan.chunks}
    return job.spec.parallelism.model_copy(update=update)
