"""From what a calibration measured to the machine that explains it.

What an action took is a sum of amounts (work.py) times costs (hardware.py): those that explain all measured actions
best, none of them negative, are the machine's. Pure arithmetic: the ranks of probe.py have done the measuring.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnpipe_trainer.planning.amounts import Amounts
from gnnpipe_trainer.planning.hardware import CPU, Costs, Hardware, Link
from gnnpipe_trainer.planning.simulate import Cores
from gnnpipe_trainer.planning.turns import taking_turns

MEGA = 1e6
PASSES = 3
FARTHEST = 3.0  # a sample that is explained by so much less than it took counts no more for that
MESSAGE_COSTS = ("message", "byte", "swap_message", "swap_byte")
UNITS = [field.name for field in fields(Costs) if field.name not in MESSAGE_COSTS]
Timings = dict[str, dict[str, float]]  # by stage, not all of them: seconds of all slots, by action
Answer = dict[str, Any]  # of one rank
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """An action as it was measured."""

    action: str
    amounts: dict[str, float]
    seconds: float


def hardware_of(ranks: list[Answer], cores: int, amounts: list[Amounts] | None = None) -> Hardware:
    """By the ranks of one calibration or of several; `amounts` by run, if work is now counted otherwise than then."""
    first = [rank for rank in ranks if "baseline" in rank]
    crowding, whole = held_up(ranks, cores, "chunks"), held_up(ranks, cores, "whole")
    messages = message_costs(ranks)

    def middle(value: Callable[[Answer], float]) -> float:
        return statistics.median(map(value, first))

    travel = middle(lambda rank: (rank["link"]["large"] - rank["link"]["small"]) / rank["link"]["bytes"])
    latency = max(1e-6, middle(lambda rank: rank["link"]["small"]) - 2 * messages["message"])
    link = Link(1 / max(1e-15, travel), latency)
    found = samples_of(
        amounts or first[-1]["amounts"],
        [rank["together"] for rank in ranks if "together" in rank],
        [whole if is_whole else crowding for is_whole in first[-1]["wholes"]],
    )
    machine = Hardware(
        f"this machine ({cores} cores)",
        fit(found, messages),
        memory_bytes=None,
        baseline_bytes=middle(lambda rank: rank["baseline"]),
        near=link,
        far=link,
        ranks_per_machine=CPU.ranks_per_machine,
        cores=Cores(cores, crowding, whole=whole),
        swapping=swap_link(ranks),
    )
    turns = taking_turns(machine, middle(lambda rank: rank["turns"]), first[-1]["turnsCut"])
    return replace(machine, cores=replace(machine.cores, turns=turns))


def held_up(ranks: list[Answer], cores: int, kind: str) -> float:
    """How much longer the same work takes when all cores are busy: `chunks`, or the `whole` graph as one slot."""

    def middle(crowd: int) -> float:
        return float(statistics.median(rank["busy"][kind][str(crowd)] for rank in ranks if "busy" in rank))

    return max(1.0, middle(cores) / middle(1))


def message_costs(ranks: list[Answer]) -> dict[str, float]:
    """Of a core, for each end of a message and for each of its bytes: what explains the small jobs best."""
    costs = [cost for kind in ("pipelines", "swaps") for cost in _by_message_and_byte(ranks, kind, "cores")]
    return dict(zip(MESSAGE_COSTS, costs, strict=True))


def swap_link(ranks: list[Answer]) -> Link:
    """What two ways see of it while they compute: each swap is a message out and as large a one in, at once."""
    message, byte = _by_message_and_byte(ranks, "swaps", "travel")
    return Link(1 / max(1e-15, 2 * byte), 2 * message)


def _by_message_and_byte(ranks: list[Answer], kind: str, what: str) -> tuple[float, float]:
    ends = [job for rank in ranks for job in rank.get(kind, [])]
    rows = np.array([[end["messages"], end["bytes"] / MEGA] for end in ends])
    message, megabyte = _none_negative(rows, np.array([end[what] for end in ends]))
    return float(message), float(megabyte) / MEGA


def samples_of(
    amounts: list[Amounts], measured: Sequence[list[Timings]], held_up: Sequence[float]
) -> list[Sample]:
    """The actions of all runs, each with the median of what ranks measured, as quick as they are alone."""
    return [
        Sample(action, units, taken[str(stage)][action] / slower)
        for run, taken, slower in zip(
            amounts, map(typical, zip(*measured, strict=True)), held_up, strict=True
        )
        for stage, actions in enumerate(run)
        for action, units in actions.items()
        if any(units.values())
    ]


def typical(passes: Sequence[Timings]) -> Timings:
    """Of each action the median. Not the least: of many short actions it would be less than any epoch ever takes."""
    found: Timings = {}
    for stage in {stage for timings in passes for stage in timings}:
        taken = [timings[stage] for timings in passes if stage in timings]
        found[stage] = {action: statistics.median(t[action] for t in taken) for action in taken[0]}
    return found


def fit(samples: list[Sample], messages: Mapping[str, float] | None = None) -> Costs:
    """The costs that explain the samples best. Long ones count more than short ones: an epoch is their sum.

    Weighed by what they should take, not by what they took: else those that were quick by chance would count more.
    """
    rows = np.array([[sample.amounts.get(unit, 0.0) for unit in UNITS] for sample in samples])
    took = np.array([sample.seconds for sample in samples])
    scale = rows.max(axis=0)
    scale[scale == 0] = 1.0
    expected = took
    for _ in range(PASSES):
        weight = 1 / np.sqrt(expected)
        found = _none_negative(rows / scale * weight[:, None], took * weight)
        expected = np.maximum(rows / scale @ found, took / FARTHEST)
    return Costs(**dict(zip(UNITS, map(float, found / scale), strict=True)), **(messages or {}))


def _none_negative(rows: Numbers, values: Numbers) -> Numbers:
    """The least squares."""
    from scipy.optimize import nnls  # not above: it would count to the memory of ranks that measure

    found: Numbers = nnls(rows, values)[0]
    return found


def errors(samples: list[Sample], costs: Costs) -> list[float]:
    """Relative error of each sample under these costs."""
    values = asdict(costs)
    return [
        sum(values[unit] * amount for unit, amount in sample.amounts.items()) / sample.seconds - 1
        for sample in samples
    ]
