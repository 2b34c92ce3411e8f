"""What machines do in a second: published figures for known ones, or measured by `gnnpipe plan --calibrate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gnnpipe_trainer.planning.simulate import Cores

GIGA = 1e9


@dataclass(frozen=True)
class Costs:
    """Seconds per unit of work on one rank."""

    multiply: float  # a multiply-add of a dense layer
    dense: float  # a vertex times a column that goes in or out of a dense layer
    edge: float  # an edge times a column of a weighted sum
    conv: float  # an edge times a column of a torch-geometric conv, which materialises messages
    row: float  # a vertex times a column of an element-wise operation
    push: float  # a vertex times a column that is written to where other slots read it
    random: float  # a random number of dropout
    refresh: float  # an edge looked at when an epoch's stale edges are sorted out
    forward_block: float  # fixed, per block and slot
    backward_block: float
    weight_block: float
    message: float = 0.0  # fixed, for each message that a rank sends or receives
    byte: float = 0.0  # of a core, for each byte that a rank sends or receives; 0 where other chips do it
    swap_message: float = 0.0  # the same two for rows that ways swap, which both wait for at once
    swap_byte: float = 0.0
    epoch: float = 0.0  # fixed: optimizer, reporting
    read: float = (
        0.0  # a vertex of another chunk times a column, for a slot that sums it, however many edges do
    )


@dataclass(frozen=True)
class Link:
    bytes_per_second: float
    latency_seconds: float

    def seconds(self, size: float) -> float:
        return self.latency_seconds + size / self.bytes_per_second if size > 0 else 0.0


@dataclass(frozen=True)
class Hardware:
    """Ranks, and what lies between them."""

    name: str
    costs: Costs
    memory_bytes: float | None  # of one rank; None: whatever the machine has
    baseline_bytes: float  # of a rank that has only started
    near: Link  # between ranks of one machine
    far: Link  # between machines; all ranks of a machine that cross at once share it
    ranks_per_machine: int = 8
    cores: Cores = field(default_factory=Cores)
    overlap: bool = True  # transfers run beside compute
    exchange_rates: Mapping[int, float] = field(
        default_factory=dict
    )  # measured: bytes/s of a rank by group size
    border_rate: float | None = None  # measured: bytes/s between two stages
    swapping: Link | None = None  # measured: what rows that ways of one machine swap see, if not `near`

    def border(self, stage: int, ways: int) -> Link:
        """Between the ranks of a stage and their likes in the next: the slowest of these links."""
        if self.border_rate is not None:
            return Link(self.border_rate, self.far.latency_seconds)
        machines = [(rank // self.ranks_per_machine) for rank in range(stage * ways, (stage + 2) * ways)]
        leaving = Counter(
            here for here, there in zip(machines, machines[ways:], strict=False) if here != there
        )
        if not leaving:
            return self.near
        # All ranks that leave a machine share its link.
        return replace(self.far, bytes_per_second=self.far.bytes_per_second / max(leaving.values()))

    def exchange(self, ways: int) -> Link:
        """What a rank has when all ways of a stage swap rows at once."""
        if ways in self.exchange_rates:
            return Link(self.exchange_rates[ways], self.far.latency_seconds)
        if ways <= self.ranks_per_machine:
            return self.swapping or self.near
        # All ranks of a machine talk to other machines at once; what stays inside is quick in comparison.
        outside = (ways - self.ranks_per_machine) / (ways - 1)
        return replace(
            self.far, bytes_per_second=self.far.bytes_per_second / self.ranks_per_machine / outside
        )


def _gpu(multiply_adds: float, memory_rate: float, launch_seconds: float = 5e-6) -> Costs:
    """From a data sheet: multiply-adds and bytes of memory per second, fp32.

    Dense layers of a few hundred columns reach about half of the peak; a neighbour's row is read from memory (a
    good part of it from cache) and index and weight beside it; a block is about ten kernels, half of them element-wise.
    """
    return Costs(
        multiply=1 / (0.5 * multiply_adds),
        dense=0.0,  # narrow layers, too, are counted by their multiply-adds
        edge=4 / (1.5 * memory_rate),
        conv=5 * 4 / (0.8 * memory_rate),
        row=2 * 4 / (0.8 * memory_rate),
        push=2 * 4 / (0.8 * memory_rate),
        random=2 * 4 / (0.8 * memory_rate),
        refresh=40 / (0.8 * memory_rate),
        forward_block=7 * launch_seconds,
        backward_block=9 * launch_seconds,
        weight_block=2 * launch_seconds,
        message=4 * launch_seconds,
        swap_message=4 * launch_seconds,
        epoch=1e-3,
    )


NVLINK_3 = Link(250e9, 5e-6)
NVLINK_4 = Link(400e9, 5e-6)
PCIE_4 = Link(20e9, 10e-6)
NETWORKS = {  # Gbit/s
    10: Link(10 / 8 * GIGA * 0.9, 30e-6),
    25: Link(25 / 8 * GIGA * 0.9, 25e-6),
    100: Link(100 / 8 * GIGA * 0.9, 15e-6),
    400: Link(400 / 8 * GIGA * 0.9, 10e-6),
}

_GPUS = {
    "a100": (_gpu(9.75e12, 1.94e12), 80e9, NVLINK_3, 8),
    "h100": (_gpu(33.5e12, 3.35e12, 4e-6), 80e9, NVLINK_4, 8),
    "a5000": (_gpu(13.9e12, 0.768e12), 24e9, PCIE_4, 4),
}

KNOWN: dict[str, Hardware] = {
    f"{gpu}-{speed}g": Hardware(
        f"{gpu.upper()}, {speed} Gbit/s", costs, memory, 1.0e9, near, network, ranks_per_machine=per_machine
    )
    for gpu, (costs, memory, near, per_machine) in _GPUS.items()
    for speed, network in NETWORKS.items()
}
DEFAULT = "a100-100g"

# A CPU core of 2020 or later with one thread per rank and gloo on loopback; `--calibrate` knows better.
CPU = Hardware(
    "CPU, not calibrated",
    Costs(
        multiply=2.0e-11,
        dense=3.0e-10,
        edge=1.0e-10,
        conv=1.0e-8,
        row=1.0e-9,
        push=1.0e-9,
        random=3.0e-9,
        refresh=3.0e-8,
        forward_block=2.2e-4,
        backward_block=1.8e-4,
        weight_block=2.0e-5,
        message=1.0e-4,
        byte=6.0e-10,
        swap_message=1.0e-4,
        swap_byte=6.0e-10,
        epoch=2.0e-3,
    ),
    memory_bytes=None,
    baseline_bytes=3.95e8,
    near=Link(0.6e9, 1.5e-4),
    far=Link(0.6e9, 1.5e-4),
    ranks_per_machine=1 << 20,
)
