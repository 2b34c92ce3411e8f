"""Everything that leaves or enters this rank, counted where it is handed to torch.distributed.

Written for NCCL's rules, which gloo also keeps: messages carry no tags, so every pair of ranks must post its
sends and receives in the same order, and each direction has a communicator of its own so that a waiting
activation can never block a gradient.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gnnpipe_trainer.pipeline.topology import Topology

# The kinds of the result's bytesPerEpoch.
PIPELINE, GRAPH, GRADIENT = "pipeline", "graph", "gradient"
# What a stage with nothing to do waits for: the stage before it, or the one after it.
FORWARD, BACKWARD = "forward", "backward"


class Recorder(Protocol):
    """Told of everything that takes time, while a run is profiled; `time.perf_counter` seconds."""

    def begin(self, epoch: int) -> None: ...
    def span(self, name: str, start: float, end: float) -> None: ...


@dataclass
class Traffic:
    """What this rank sent, received and waited for since it was last taken."""

    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    wait_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    idle_seconds: dict[str, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # part of the pipeline's waits
    recorder: Recorder | None = None

    def take(self) -> Traffic:
        """What was counted so far; counting starts anew."""
        taken = Traffic(self.sent, self.received, self.wait_seconds, self.idle_seconds)
        self.sent, self.received = defaultdict(int), defaultdict(int)
        self.wait_seconds, self.idle_seconds = defaultdict(float), defaultdict(float)
        return taken

    @contextmanager
    def waiting(self, kind: str, idle_for: str | None = None) -> Iterator[None]:
        """Count the time of the block; `idle_for` says whose work was waited for, if it was not just the wire."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.wait_seconds[kind] += end - start
            if idle_for is not None:
                self.idle_seconds[idle_for] += end - start
            if self.recorder is not None:
                self.recorder.span(f"wait {kind}", start, end)


@dataclass
class Groups:
    """The communicators of a rank. Every rank makes all of them, in the same order."""

    activations: dist.ProcessGroup
    gradients: dist.ProcessGroup
    ways: dist.ProcessGroup  # the ranks of this stage
    control: dist.ProcessGroup  # gloo on CPU tensors, also where the rest is NCCL

    @staticmethod
    def make(topology: Topology, timeout: timedelta) -> Groups:
        everyone = list(range(topology.world))
        activations = dist.new_group(everyone, timeout=timeout)
        gradients = dist.new_group(everyone, timeout=timeout)
        ways = [dist.new_group(topology.stage_ranks(s), timeout=timeout) for s in range(topology.stages)]
        control = dist.new_group(everyone, backend="gloo", timeout=timeout)
        return Groups(activations, gradients, ways[topology.stage], control)


class Channel:
    """One direction between this rank and a neighbouring stage: slots in schedule order."""

    def __init__(
        self,
        peer: int,
        group: dist.ProcessGroup,
        traffic: Traffic,
        wire: torch.dtype,
        device: torch.device,
        direction: str = FORWARD,
    ) -> None:
        self.peer, self.group, self.traffic, self.wire, self.device = peer, group, traffic, wire, device
        self.direction = direction
        self._sends: deque[tuple[dist.Work, Tensor]] = deque()
        self._receives: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, tensors: tuple[Tensor, ...], slot: int | None = None) -> None:
        """Hand over and go on. `slot` is for channels that remember what a slot was like."""
        flat = [tensor.detach().reshape(-1) for tensor in tensors]
        self._hand_over((flat[0] if len(flat) == 1 else torch.cat(flat)).to(self.wire))

    def can_post(self, slot: int | None) -> bool:
        """Whether this end knows how long the slot's message will be."""
        return True

    def post(self, numbers: int, slot: int | None = None) -> None:
        """Announce the next receive early, so that the sender never waits for this rank's compute."""
        self._announce(numbers, self.wire)

    def receive(
        self, rows: int, widths: tuple[int, ...], dtype: torch.dtype, slot: int | None = None
    ) -> tuple[Tensor, ...]:
        """The oldest posted message as tensors [rows, width]."""
        parts = torch.split(
            self._receive_flat(rows * sum(widths), dtype, slot), [rows * width for width in widths]
        )
        return tuple(part.view(rows, width) for part, width in zip(parts, widths, strict=True))

    def _receive_flat(self, numbers: int, dtype: torch.dtype, slot: int | None) -> Tensor:
        return self._take().to(dtype)

    def _hand_over(self, message: Tensor, group: dist.ProcessGroup | None = None) -> None:
        """The message stays alive until it has left."""
        work = dist.isend(message, self.peer, group=group or self.group)
        assert work is not None
        self._sends.append((work, message))
        self.traffic.sent[PIPELINE] += message.nbytes
        while self._sends and self._sends[0][0].is_completed():
            self._sends.popleft()

    def _announce(self, length: int, dtype: torch.dtype) -> None:
        message = torch.empty(length, dtype=dtype, device=self.device)
        work = dist.irecv(message, self.peer, group=self.group)
        assert work is not None
        self._receives.append((work, message))

    def _take(self) -> Tensor:
        return self._wait(*self._receives.popleft())

    def _wait(self, work: dist.Work | None, message: Tensor) -> Tensor:
        assert work is not None
        with self.traffic.waiting(PIPELINE, idle_for=self.direction):
            work.wait()
        self.traffic.received[PIPELINE] += message.nbytes
        return message

    def flush(self) -> None:
        """Wait until everything has left."""
        with self.traffic.waiting(PIPELINE):
            while self._sends:
                self._sends.popleft()[0].wait()


class Ways:
    """The ranks that share this stage: they swap boundary rows and sum weight gradients."""

    def __init__(
        self, topology: Topology, group: dist.ProcessGroup, traffic: Traffic, wire: torch.dtype
    ) -> None:
        self.topology, self.group, self.traffic, self.wire = topology, group, traffic, wire

    def swap(
        self, outgoing: list[tuple[int, Tensor]], incoming: list[tuple[int, Tensor]]
    ) -> Callable[[], None]:
        """Start sending rows to and receiving rows from other ways; call the result to wait for all of it."""
        operations: list[dist.P2POp] = []
        landing: list[tuple[Tensor, Tensor]] = []
        for (
            way,
            rows,
        ) in incoming:  # first: gloo holds back what nobody waits for, and a link works one way at a time
            if rows.numel():
                message = rows if rows.dtype == self.wire else torch.empty_like(rows, dtype=self.wire)
                operations.append(self._operation(dist.irecv, message, way))
                landing.append((message, rows))
                self.traffic.received[GRAPH] += message.nbytes
        for way, rows in outgoing:
            if rows.numel():
                message = rows.to(self.wire)
                operations.append(self._operation(dist.isend, message, way))
                self.traffic.sent[GRAPH] += message.nbytes
        if not operations:
            return nothing_to_wait_for
        works = dist.batch_isend_irecv(operations)

        def wait() -> None:
            with self.traffic.waiting(GRAPH):
                for work in works:
                    work.wait()
            for message, rows in landing:
                if message is not rows:
                    rows.copy_(message)

        return wait

    def sum_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """All-reduce inside the stage, as one flat message."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        if self.topology.ways == 1 or not gradients:
            return
        flat = torch.cat([g.reshape(-1) for g in gradients])
        with self.traffic.waiting(GRADIENT):
            dist.all_reduce(flat, group=self.group)
        # A ring all-reduce moves every byte 2 (n-1)/n times out of each rank.
        moved = 2 * (self.topology.ways - 1) * flat.nbytes // self.topology.ways
        self.traffic.sent[GRADIENT] += moved
        self.traffic.received[GRADIENT] += moved
        for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _operation(self, verb: Callable[..., dist.Work | None], message: Tensor, way: int) -> dist.P2POp:
        return dist.P2POp(verb, message, self.topology.rank_of(self.topology.stage, way), self.group)


def nothing_to_wait_for() -> None:
    pass
