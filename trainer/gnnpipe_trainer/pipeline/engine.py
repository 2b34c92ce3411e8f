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
from gnnpipe_trainer.models.block import Model, State
from gnnpipe_trainer.models.linear import WeightGradientQueue, defer_weight_gradients
from gnnpipe_trainer.pipeline.channels import Borders, borders_without_zeros, make_channels
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
from gnnpipe_trainer.pipeline.stage import Gradients, Stage
from gnnpipe_trainer.pipeline.topology import Topology
from gnnpipe_trainer.pipeline.wire import Groups, Recorder, Traffic, Ways

RECEIVES_AHEAD = 4  # posted before they are needed, so that a sender never waits for this rank's compute
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
        # Nobody waits for the first stage's input gradients: there W follows at once, best where I has its data.
        self.puts_off_weights = job.spec.parallelism.split_backward and not topology.is_first
        self.shard = shard or Shard(graph, topology.way, self.dtype, device)
        self.model = model.to(dtype=WEIGHT_DTYPES[job.spec.training.precision])
        for module in self.modules_of(topology.stage):
            module.to(device)
        self.stage = self._make_stage(model, graph)
        self.parameters = self.parameters_of(topology.stage)
        self.edge_kinds = {
            g.kind for g in self.stage.gathers if isinstance(g, WeightedSum) and not g.history.keeps_gradients
        }
        self.schedule = epoch_schedule(
            plan.stages, topology.stage, self.slots, job.spec.parallelism.split_backward
        )
        self._last_forward = [action for action in self.schedule if action.work is Work.FORWARD][-1]
        self._channels = make_channels(
            self.schedule, topology, groups, self.traffic, self.wire, device, self._borders
        )

    # -- one epoch -----------------------------------------------------------------------------------------

    def train_epoch(self, epoch: int, between: Callable[[], None] | None = None) -> EpochTimes:
        """Forward and backward of every slot; gradients are left on the parameters.

        `between` is called when this rank's forward is done: from then on history is what the next epoch reads.
        """
        start = time.perf_counter()
        parallelism = self.job.spec.parallelism
        order = slot_order(self.slots, self.job.spec.training.seed, epoch, parallelism.shuffle_chunks)
        freshness = Freshness(self.shard, order)
        self.stage.start_epoch(epoch, freshness)
        run = _Run(self, order, freshness)
        do = run.do if self.traffic.recorder is None else self._recorded(run.do, epoch, self.traffic.recorder)
        for action in self.schedule:
            do(action)
            if action is self._last_forward and between is not None:
                between()
        for channel in self._channels.values():
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
                channel = self._channels[Work.FORWARD, Move.RECV]
                channel.post(self._elements(None, self._border_widths_in))
                state = channel.receive(self.shard.inward.own, self._border_widths_in, self.dtype)
            elif action.move is Move.SEND:
                self._channels[Work.FORWARD, Move.SEND].send(state)
            else:
                state = self.stage.exact_forward(state, fill_history)
        for module in self.modules_of(self.topology.stage):
            module.train()
        if (Work.FORWARD, Move.SEND) in self._channels:
            self._channels[Work.FORWARD, Move.SEND].flush()
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
        self._border_widths_in = blocks[first - 1].widths if first else ()
        self._border_widths_out = mine[-1].widths
        self._borders: Borders = {}
        if self.job.spec.parallelism.wire_zeros == "skip":
            self._borders = borders_without_zeros(
                self.topology, blocks[first - 1] if first else None, mine[-1]
            )
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

    def _elements(self, slot: int | None, widths: tuple[int, ...]) -> int:
        rows = self.shard.inward.rows_of(slot)
        return int(rows.stop - rows.start) * sum(widths)


class _Run:
    """One epoch under way."""

    def __init__(self, engine: Engine, order: list[int], freshness: Freshness) -> None:
        self.engine, self.freshness = engine, freshness
        self.order: list[int | None] = [None] if engine.slots == 1 else list(order)
        self.loss: Tensor | float = 0.0
        self.states: dict[int, State] = {}  # by position: received activations, or those to be sent
        self.gradients: dict[int, Gradients] = {}
        self.weight_work: dict[int, WeightGradientQueue] = {}
        self._to_post = {
            work: [a for a in engine.schedule if a.move is Move.RECV and a.work is work]
            for work in (Work.FORWARD, Work.INPUT_GRADIENT)
        }
        self._ahead = dict.fromkeys(self._to_post, 0)
        for border in engine._borders.values():
            border.start_epoch()
        for work in self._to_post:
            self._post_ahead(work)
        if not engine.topology.is_first:
            self._sort_out_edges()

    def do(self, action: Action) -> None:
        if action.move is Move.RECV:
            if action.work is Work.INPUT_GRADIENT:
                self._sort_out_edges()
            self._receive(action)
        elif action.move is Move.SEND:
            self._send(action)
        elif action.work is Work.FORWARD:
            self._forward(action.position)
        elif action.work is Work.INPUT_GRADIENT:
            self._backward(action.position)
        elif self.engine.puts_off_weights:
            self.weight_work.pop(action.position).run()

    def _sort_out_edges(self) -> None:
        """Fills waiting time: later stages wait for the first slot, the first stage for the first gradient."""
        self.freshness.prepare(self.engine.edge_kinds)

    def _forward(self, position: int) -> None:
        received = self.states.pop(position, ())
        outputs = self.engine.stage.forward(self.order[position], received)
        if self.engine.topology.is_last:
            self.loss = self.loss + outputs[0]
        else:
            self.states[position] = outputs

    def _backward(self, position: int) -> None:
        engine, slot = self.engine, self.order[position]
        gradients = self.gradients.pop(position, None)
        if gradients is None:  # the last stage starts from the loss
            gradients = (torch.ones((), dtype=engine.dtype, device=engine.device),)
        if engine.puts_off_weights:
            queue = self.weight_work[position] = WeightGradientQueue()
            with defer_weight_gradients(queue):
                gradients = engine.stage.backward(slot, gradients)
        else:
            gradients = engine.stage.backward(slot, gradients)
        self.gradients[position] = gradients

    def _send(self, action: Action) -> None:
        channel = self.engine._channels[action.work, Move.SEND]
        if action.work is Work.FORWARD:
            channel.send(self.states.pop(action.position), self.order[action.position])
            self._post_ahead(Work.INPUT_GRADIENT)
            return
        widths = self.engine._border_widths_in
        rows = self.engine.shard.inward.rows_of(self.order[action.position])
        gradients = self.gradients.pop(action.position)
        shape = rows.stop - rows.start
        channel.send(
            tuple(
                g
                if g is not None
                else torch.zeros(shape, w, dtype=self.engine.dtype, device=self.engine.device)
                for g, w in zip(gradients, widths, strict=True)
            ),
            self.order[action.position],
        )

    def _receive(self, action: Action) -> None:
        engine = self.engine
        slot = self.order[action.position]
        rows = engine.shard.inward.rows_of(slot)
        channel = engine._channels[action.work, Move.RECV]
        received = channel.receive(rows.stop - rows.start, self._widths(action.work), engine.dtype, slot)
        if action.work is Work.FORWARD:
            self.states[action.position] = received
        else:
            self.gradients[action.position] = received
        self._ahead[action.work] -= 1
        self._post_ahead(action.work)

    def _post_ahead(self, work: Work) -> None:
        """In the order of the schedule, as many as may wait, as far as their length is known."""
        while self._to_post[work] and self._ahead[work] < RECEIVES_AHEAD:
            slot = self.order[self._to_post[work][0].position]
            channel = self.engine._channels[work, Move.RECV]
            if not channel.can_post(slot):
                return
            channel.post(self.engine._elements(slot, self._widths(work)), slot)
            self._to_post[work].pop(0)
            self._ahead[work] += 1

    def _widths(self, work: Work) -> tuple[int, ...]:
        return self.engine._border_widths_in if work is Work.FORWARD else self.engine._border_widths_out


def make_groups(topology: Topology, timeout_seconds: float) -> Groups:
    return Groups.make(topology, timedelta(seconds=timeout_seconds))
