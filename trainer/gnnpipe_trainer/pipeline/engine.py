"""Runs schedules on this rank: the only code that puts stage, wire and weights together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, nn

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.models.block import Block, Model, State
from gnnpipe_trainer.pipeline.channels import Borders, borders_without_zeros, make_channels
from gnnpipe_trainer.pipeline.epoch_run import EpochRun
from gnnpipe_trainer.pipeline.freshness import Freshness
from gnnpipe_trainer.pipeline.gather import ConstantSum, Gather, WeightedSum, make_gather
from gnnpipe_trainer.pipeline.history import History, WholeGraph, side_by_side
from gnnpipe_trainer.pipeline.schedule import (
    Action,
    Move,
    Work,
    epoch_schedule,
    exact_schedule,
    slot_count,
    slot_order,
)
from gnnpipe_trainer.pipeline.shard import Shard
from gnnpipe_trainer.pipeline.stage import Stage
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups, Recorder, Traffic, Ways

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}  # of activations
WEIGHT_DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}


@dataclass
class EpochTimes:
    """What one epoch cost this rank."""

    loss: float  # this rank's share; 0 except on the last stage
    seconds: float
    traffic: Traffic

    @property
    def wait_seconds(self) -> float:
        return sum(self.traffic.wait_seconds.values())


class Engine:
    def __init__(
        self,
        job: GNNPipeJob,
        plan: Plan,
        graph: ChunkedGraph,
        model: Model,
        topology: Topology,
        groups: Groups,
        device: torch.device,
        shard: Shard | None = None,
        slots: int | None = None,
    ) -> None:
        """`slots`: how many steps an epoch takes, if not what the plan asks for; benchmarks use it."""
        self.job, self.plan, self.topology, self.groups, self.device = job, plan, topology, groups, device
        self.dtype = DTYPES[job.spec.training.precision]
        self.traffic = Traffic()
        self.slots = slots or slot_count(plan.stages, plan.ways, plan.chunks)
        self.shard = shard or Shard(graph, topology.way, self.dtype, device)
        self.model = model.to(dtype=WEIGHT_DTYPES[job.spec.training.precision])
        for module in self.modules_of(topology.stage):
            module.to(device)
        self.borders: Borders = {}
        self._border_blocks: tuple[Block | None, Block]
        self.stage = self._make_stage(model, graph)
        self.parameters = self.parameters_of(topology.stage)
        self.edge_kinds = {
            g.kind for g in self.stage.gathers if isinstance(g, WeightedSum) and not g.history.keeps_gradients
        }
        split = job.spec.parallelism.split_backward
        self._schedules = {
            slots: epoch_schedule(plan.stages, topology.stage, slots, split) for slots in {1, self.slots}
        }
        self.schedule = self._schedules[self.slots]
        self.skips_zeros = False
        self._open_channels()
        if job.spec.parallelism.wire_zeros == "skip":
            self.skip_zeros()

    def skip_zeros(self) -> None:
        """From the next epoch on, zeros do not cross borders. All ranks call it between the same two epochs."""
        self.skips_zeros = True
        self.borders = borders_without_zeros(self.topology, *self._border_blocks)
        self._open_channels()

    def _open_channels(self) -> None:
        self.channels = make_channels(
            self.schedule, self.topology, self.groups, self.traffic, self.wire, self.device, self.borders
        )

    # -- one epoch -----------------------------------------------------------------------------------------

    def slot_order(self, epoch: int) -> list[int]:
        """Which slot comes when. While training warms up the whole graph is one, to which everything is fresh."""
        parallelism = self.job.spec.parallelism
        slots = 1 if epoch < parallelism.history.warmup_epochs else self.slots
        return slot_order(slots, self.job.spec.training.seed, epoch, parallelism.shuffle_chunks)

    def train_epoch(self, epoch: int, between: Callable[[], None] | None = None) -> EpochTimes:
        """Forward and backward of every slot; gradients are left on the parameters.

        `between` is called when this rank's forward is done: from then on history is what the next epoch reads.
        """
        start = time.perf_counter()
        order = self.slot_order(epoch)
        schedule = self._schedules[len(order)]
        last_forward = [action for action in schedule if action.work is Work.FORWARD][-1]
        freshness = Freshness(self.shard, order)
        self.stage.start_epoch(epoch, freshness)
        run = EpochRun(self, schedule, freshness)
        do = run.do if self.traffic.recorder is None else self._recorded(run.do, epoch, self.traffic.recorder)
        for action in schedule:
            do(action)
            if action is last_forward and between is not None:
                between()
        for channel in self.channels.values():
            channel.flush()
        self.ways.sum_gradients(self.parameters)
        self.stage.end_epoch()
        return EpochTimes(float(run.loss), time.perf_counter() - start, self.traffic.take())

    def exact_pass(self, fill_history: bool = False) -> Tensor | None:
        """The whole graph without history; logits of this way's vertices on the last stage, else None."""
        for module in self.modules_of(self.topology.stage):
            module.eval()
        state: State = ()
        for action in exact_schedule(self.plan.stages, self.topology.stage):
            if action.move is Move.RECV:
                channel = self.channels[Work.FORWARD, Move.RECV]
                channel.post(self.elements(None, self.widths_in))
                state = channel.receive(self.shard.inward.own, self.widths_in, self.dtype)
            elif action.move is Move.SEND:
                self.channels[Work.FORWARD, Move.SEND].send(state)
            else:
                state = self.stage.exact_forward(state, fill_history)
        for module in self.modules_of(self.topology.stage):
            module.train()
        if (Work.FORWARD, Move.SEND) in self.channels:
            self.channels[Work.FORWARD, Move.SEND].flush()
        self.traffic.take()  # not part of an epoch's bytes
        return state[0] if self.topology.is_last else None

    def _recorded(
        self, do: Callable[[Action], None], epoch: int, recorder: Recorder
    ) -> Callable[[Action], None]:
        """Each action as a span under its own name; a GPU is waited for, or the span would only be its order."""

        def timed(action: Action) -> None:
            start = time.perf_counter()
            do(action)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            recorder.span(str(action), start, time.perf_counter())

        recorder.begin(epoch)
        return timed

    # -- making --------------------------------------------------------------------------------------------

    def _make_stage(self, model: Model, graph: ChunkedGraph) -> Stage:
        wire = {"fp32": self.dtype, "bf16": torch.bfloat16}[self.job.spec.parallelism.wire]
        self.wire = wire
        self.ways = Ways(self.topology, self.groups.ways, self.traffic, wire)
        first = self.plan.first_layer(self.topology.stage)
        blocks = model.block_list()
        mine = blocks[first : first + self.plan.layers_per_stage[self.topology.stage]]
        self.widths_in = blocks[first - 1].widths if first else ()
        self.widths_out = mine[-1].widths
        self._border_blocks = blocks[first - 1] if first else None, mine[-1]
        gathers: list[Gather] = []
        if self.topology.is_first and model.constant_first_message and mine[0].edge_weights is not None:
            gathers.append(ConstantSum(mine[0], self.shard))
        read = mine[len(gathers) :]
        factor = self.job.spec.parallelism.fresh_gradient_factor
        for block, history in zip(read, self._make_histories([b.message_width for b in read]), strict=True):
            gathers.append(make_gather(block, self.shard, history, self.ways, factor))
        return Stage(
            gathers,
            self.shard,
            model.encoder if self.topology.is_first else None,
            model.decoder if self.topology.is_last else None,
            first,
            int(graph.train_mask.sum()),
            self.job.spec.training.seed,
            self.job.spec.parallelism.recompute,
        )

    def _make_histories(self, widths: list[int]) -> Sequence[History]:
        rows = self.shard.inward.rows
        if self.slots == 1:
            return [WholeGraph(rows, width, self.dtype, self.device) for width in widths]
        parallelism = self.job.spec.parallelism
        dtype = torch.bfloat16 if parallelism.history_precision == "bf16" else self.dtype
        return side_by_side(rows, widths, parallelism.history, dtype, self.device)

    def modules_of(self, stage: int) -> list[nn.Module]:
        """What a stage holds of the model, in the order in which the model names it."""
        first = self.plan.first_layer(stage)
        modules: list[nn.Module] = [
            *self.model.block_list()[first : first + self.plan.layers_per_stage[stage]]
        ]
        if stage == 0:
            modules.insert(0, self.model.encoder)
        if stage == self.plan.stages - 1:
            modules.append(self.model.decoder)
        return modules

    def parameters_of(self, stage: int) -> list[nn.Parameter]:
        return [parameter for module in self.modules_of(stage) for parameter in module.parameters()]

    def elements(self, slot: int | None, widths: tuple[int, ...]) -> int:
        rows = self.shard.inward.rows_of(slot)
        return int(rows.stop - rows.start) * sum(widths)


def make_groups(topology: Topology, timeout_seconds: float) -> Groups:
    return Groups.make(topology, timedelta(seconds=timeout_seconds))
