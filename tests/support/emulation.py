"""The training rule, written once more: slow, in one process, on the whole graph, in plain autograd.

Per layer every vertex reads its in-neighbours: fresh ones with their gradient, stale ones from history as
constants. With `gradients: last` what the epoch before sent through stale edges is added as a term to the loss whose
gradient it is. This says nothing about slots in turn, stages or ranks, so it shares no mistake with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import Plan
from gnnpipe_trainer.graph.chunks import ChunkedGraph
from gnnpipe_trainer.models.block import ConvBlock, Model
from gnnpipe_trainer.models.loss import loss_sum
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline.schedule import slot_count, slot_order


@dataclass
class Emulated:
    losses: list[float]
    gradients: list[dict[str, Any]]


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient * ctx.factor, None


class Emulation:
    def __init__(self, job: GNNPipeJob, plan: Plan, graph: ChunkedGraph, model: Model) -> None:
        self.job, self.plan, self.graph, self.model = job, plan, graph, model.double()
        self.spec = job.spec.parallelism
        self.slots = slot_count(plan.stages, plan.ways, plan.chunks)
        chunk = graph.chunk_of(np.arange(graph.num_vertices))
        per_way = plan.chunks // plan.ways
        self.slot = torch.from_numpy(chunk % per_way if self.slots > 1 else chunk * 0)
        self.way = torch.from_numpy(chunk // per_way)
        counts = np.diff(graph.indptr)
        self.target = torch.from_numpy(np.repeat(np.arange(graph.num_vertices), counts))
        self.source = torch.from_numpy(np.array(graph.indices, dtype=np.int64))
        self.degree = torch.from_numpy(np.array(graph.in_degree)).double()
        self.features = torch.from_numpy(np.array(graph.features)).double()
        self.labels = torch.from_numpy(np.array(graph.labels))
        self.train_mask = torch.from_numpy(np.array(graph.train_mask))
        self.history: list[Tensor | None] = [None for _ in model.blocks]
        # Gradients of the last epoch by block: of its sums, or, for a conv, of what was read from history.
        self.late: list[Tensor] = []

    def train(self, epochs: int) -> Emulated:
        optimizer = make_optimizer(self.job.spec.training, list(self.model.parameters()))
        if self.slots > 1 and self.spec.history.warmup == "exact":
            self._exact_history()
        result = Emulated([], [])
        for epoch in range(epochs):
            loss, messages = self._forward(epoch)
            (loss + self.from_last_epoch).backward()
            self.late = self._for_the_next_epoch()
            result.losses.append(float(loss.detach()))
            result.gradients.append(
                {
                    n: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().copy()
                    for n, p in self.model.named_parameters()
                }
            )
            self._update_history(epoch, messages)
            optimizer.step()
            optimizer.zero_grad()
        return result

    def _for_the_next_epoch(self) -> list[Tensor]:
        now = [torch.zeros_like(t) if t.grad is None else t.grad for t in self.watched]
        if self.spec.history.gradients != "average":
            return now
        old, decay = self.late or [torch.zeros_like(t) for t in now], self.spec.history.decay
        convs = [isinstance(block, ConvBlock) for block in self.model.block_list()]
        pairs = zip(convs, old, now, strict=True)
        return [new if conv else decay * before + (1 - decay) * new for conv, before, new in pairs]

    def _forward(self, epoch: int) -> tuple[Tensor, list[Tensor]]:
        order = slot_order(self.slots, self.job.spec.training.seed, epoch, self.spec.shuffle_chunks)
        position = torch.empty(self.slots, dtype=torch.long)
        position[torch.tensor(order)] = torch.arange(self.slots)
        warm = epoch >= self.spec.history.warmup_epochs
        when = position[self.slot] if warm else torch.zeros_like(self.slot)  # all at once: nothing is stale
        state = self.model.encoder(self.features)
        messages: list[Tensor] = []
        self.watched: list[Tensor] = []
        self.from_last_epoch = torch.zeros(())
        for index, block in enumerate(self.model.block_list()):
            x = block.message(state)
            messages.append(x.detach())
            constant = index == 0 and self.model.constant_first_message and not isinstance(block, ConvBlock)
            old = x.detach() if constant else self._served(index, x)
            gather = self._convolve if isinstance(block, ConvBlock) else self._weighted_sum
            gathered = gather(block, x, old, when)
            if self.spec.history.gradients in ("last", "average") and self.late:
                self.from_last_epoch = self.from_last_epoch + self._late_term(
                    block, x, self.late[index], when
                )
            state = block.update(gathered, x, state)
        logits = self.model.decoder(state)
        return loss_sum(logits, self.labels, self.train_mask) / self.train_mask.sum(), messages

    def _served(self, index: int, x: Tensor) -> Tensor:
        """[V, d]: what history serves, before it is moved for each reader by _shift."""
        history = self.history[index]
        return torch.zeros_like(x) if history is None else history

    def _shift(self, x: Tensor, old: Tensor, when: Tensor, reader: int, way: int) -> Tensor:
        if self.spec.history.mode != "shift" and self.spec.history.correction != "mean":
            return torch.zeros(x.shape[1], dtype=x.dtype)
        seen = (when <= reader) & (self.way == way)
        return (x.detach() - old)[seen].mean(0)

    def _weights(self, kind: str) -> tuple[Tensor, Tensor, Tensor]:
        source, target = self.source, self.target
        if kind == "sym":
            loop = torch.arange(self.graph.num_vertices)
            source, target = torch.cat([source, loop]), torch.cat([target, loop])
            return source, target, 1 / ((self.degree[source] + 1) * (self.degree[target] + 1)).sqrt()
        weight = torch.ones(len(source), dtype=torch.float64)
        return source, target, weight / self.degree[target] if kind == "mean" else weight

    def _weighted_sum(self, block: Any, x: Tensor, old: Tensor, when: Tensor) -> Tensor:
        source, target, weight = self._weights(block.edge_weights)
        same = when[source] == when[target]
        crossing = when[source] < when[target]
        stale = when[source] > when[target]
        louder = _ScaleGradient.apply(x, self.spec.fresh_gradient_factor)
        shifted = old[source].clone()
        for reader in range(self.slots):
            for way in range(self.plan.ways):
                mine = (when[target] == reader) & (self.way[target] == way)
                shifted[mine] += self._shift(x, old, when, reader, way)
        rows = torch.where(same[:, None], x[source], 0) + torch.where(crossing[:, None], louder[source], 0)
        rows = rows + torch.where(stale[:, None], shifted, 0)
        gathered = torch.zeros_like(x).index_add(0, target, rows * weight[:, None])
        if gathered.requires_grad:
            gathered.retain_grad()
        self.watched.append(gathered)
        return gathered

    def _late_term(self, block: Any, x: Tensor, late: Tensor, when: Tensor) -> Tensor:
        """Its gradient is what flows through edges that are stale now; a conv's arrives an epoch late instead."""
        if isinstance(block, ConvBlock):
            return (x * late).sum()
        source, target, weight = self._weights(block.edge_weights)
        stale = when[source] > when[target]
        return ((x[source] * late[target] * weight[:, None])[stale]).sum()

    def _convolve(self, block: Any, x: Tensor, old: Tensor, when: Tensor) -> Tensor:
        louder = _ScaleGradient.apply(x, self.spec.fresh_gradient_factor)
        out: Tensor | None = None
        read_stale = torch.zeros_like(x, requires_grad=True)
        self.watched.append(read_stale)
        for reader in range(self.slots):
            for way in range(self.plan.ways):
                own = torch.nonzero((when == reader) & (self.way == way)).flatten()
                if not len(own):
                    continue
                served = old + self._shift(x, old, when, reader, way) + read_stale
                rows = torch.where(
                    (when == reader)[:, None], x, torch.where((when < reader)[:, None], louder, served)
                )
                others = torch.ones(len(x), dtype=torch.bool)
                others[own] = False
                everyone = torch.cat([own, torch.nonzero(others).flatten()])
                place = torch.empty(len(x), dtype=torch.long)
                place[everyone] = torch.arange(len(x))
                mine = torch.isin(self.target, own)
                edges = torch.stack([place[self.source[mine]], place[self.target[mine]]])
                part = block.convolve(rows[everyone], len(own), edges)
                out = part.new_zeros(len(x), part.shape[1]) if out is None else out
                out = out.index_add(0, own, part)
        assert out is not None
        return out

    @torch.no_grad()
    def _exact_history(self) -> None:
        slots, self.slots = self.slots, 1
        slot, self.slot = self.slot, torch.zeros_like(self.slot)
        self.model.eval()
        _, messages = self._forward(0)
        self.model.train()
        self.slots, self.slot = slots, slot
        self.history = list(messages)

    def _update_history(self, epoch: int, messages: list[Tensor]) -> None:
        spec = self.spec.history
        for index, fresh in enumerate(messages):
            old = self.history[index]
            if old is None:
                old = torch.zeros_like(fresh)
            if spec.mode == "ema":
                self.history[index] = spec.decay * old + (1 - spec.decay) * fresh
            elif spec.mode == "frozen":
                self.history[index] = fresh if (epoch + 1) % spec.refresh_every == 0 else old
            else:
                self.history[index] = fresh
