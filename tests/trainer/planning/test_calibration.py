"""Costs are found from what was measured, kept, and used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.pipeline.schedule import Work
from gnnpipe_trainer.planning.amounts import REFRESH, STEP, amounts_of, as_lists
from gnnpipe_trainer.planning.cut import estimate_cut
from gnnpipe_trainer.planning.fitting import (
    MESSAGE_COSTS,
    UNITS,
    Sample,
    errors,
    fit,
    hardware_of,
    held_up,
    message_costs,
    samples_of,
)
from gnnpipe_trainer.planning.forecast import Planner
from gnnpipe_trainer.planning.hardware import CPU, KNOWN, Costs, Link
from gnnpipe_trainer.planning.runs import turns_run
from gnnpipe_trainer.planning.samples import Bench
from gnnpipe_trainer.planning.shape import built_in_shape
from gnnpipe_trainer.planning.simulate import Cores
from gnnpipe_trainer.planning.stored import FILE, FORMAT, load_calibration, save_calibration
from gnnpipe_trainer.planning.turns import MOST, CountedGraph

# What a swap costs must be told from what a message of a pipeline does.
TRUE = replace(CPU.costs, swap_message=2.5e-4, swap_byte=9.0e-10, read=3e-10)


def sample(action: str, **amounts: float) -> Sample:
    every = dict.fromkeys(UNITS, 0.0) | amounts
    costs = asdict(TRUE)
    return Sample(action, every, sum(costs[unit] * amount for unit, amount in every.items()))


MESSAGES = {unit: asdict(TRUE)[unit] for unit in MESSAGE_COSTS}
SAMPLES = [
    sample(Work.FORWARD, multiply=1e9, dense=5e7, edge=3e8, row=1e7, push=3e7, random=2e6, forward_block=4),
    sample(Work.FORWARD, multiply=2e8, edge=1e9, read=8e6, row=5e7, forward_block=64),
    sample(Work.FORWARD, multiply=3e8, conv=2e6, row=2e6, random=9e5, forward_block=8),
    sample(Work.INPUT_GRADIENT, multiply=1e9, edge=2e8, row=3e7, push=4e6, backward_block=4),
    sample(Work.INPUT_GRADIENT, multiply=5e8, edge=9e8, row=1e7, backward_block=64),
    sample(Work.INPUT_GRADIENT, multiply=2e8, conv=4e6, row=6e6, backward_block=8),
    sample(Work.WEIGHT_GRADIENT, multiply=1e9, dense=2e7, weight_block=4),
    sample(Work.WEIGHT_GRADIENT, multiply=1e8, dense=8e6, weight_block=8),
    sample(Work.WEIGHT_GRADIENT, multiply=4e8, weight_block=64),
    sample(Work.WEIGHT_GRADIENT, multiply=3e8, dense=6e6, weight_block=32),
    sample(Work.BACKWARD, multiply=8e8, dense=3e7, edge=1e8, row=8e6, backward_block=16, weight_block=16),
    sample(Work.FORWARD, row=1e8, random=3e7, forward_block=2),
    sample(Work.INPUT_GRADIENT, edge=4e8, read=5e7, row=2e6, backward_block=2),
    sample(REFRESH, refresh=2e6),
    sample(STEP, epoch=1, row=1e5),
]


def test_costs_that_explain_the_samples_are_found_again() -> None:
    found = fit(SAMPLES, MESSAGES)
    for unit, cost in asdict(TRUE).items():
        assert getattr(found, unit) == pytest.approx(cost, rel=1e-6), unit
    assert max(map(abs, errors(SAMPLES, found))) < 1e-6


def test_no_cost_is_negative_however_odd_the_samples() -> None:
    odd = [replace(s, seconds=s.seconds * (1 + 0.5 * (-1) ** i)) for i, s in enumerate(SAMPLES)]
    assert min(asdict(fit(odd)).values()) >= 0


def test_the_engines_own_actions_are_measured_and_each_has_work(job: Callable[..., GNNPipeJob]) -> None:
    bench = Bench(job("sage", 4, stages=2, chunks=5))
    samples = samples_of(
        [amounts_of(bench.job, bench.graph)], [[bench.epoch(0)], [bench.epoch(1)], [bench.epoch(1)]], [1.0]
    )
    first, last = [Work.FORWARD, Work.BACKWARD, REFRESH, STEP], [*Work, REFRESH, STEP]
    assert [s.action for s in samples] == [*map(str, first), *map(str, last)]  # the first stage puts no W off
    assert all(s.seconds > 0 for s in samples)
    assert all(s.amounts["multiply"] > 0 for s in samples if s.action in list(Work))


def test_fits_are_not_drawn_towards_samples_that_were_quick_by_chance() -> None:
    noisy = [replace(s, seconds=s.seconds * factor) for s in SAMPLES for factor in (0.7, 1.0, 1.3)]
    found = fit(noisy)
    means = [
        sum(getattr(found, unit) * amount for unit, amount in s.amounts.items()) / s.seconds for s in SAMPLES
    ]
    assert means == pytest.approx([1.0] * len(SAMPLES), abs=0.04)


SWAPPING = Link(2e9, 4e-4)
TURNS_CUT = estimate_cut(20_000, 240_000, 1, 16)


def turns_seconds(cores: Cores) -> float:
    """An epoch of the pipeline that takes turns, on a machine with these costs."""
    job = turns_run(2).job()
    shape = built_in_shape(job.spec.model, 64, job.spec.graph.classes)
    link = Link(1e9, 1e-4)
    machine = replace(CPU, costs=TRUE, cores=cores, near=link, far=link)
    return Planner(job, shape, CountedGraph(TURNS_CUT, 64, 0), machine).forecast(make_plan(job)).seconds


def answers(crowding: float = 1.2, turns: float = 1.1, whole: float = 1.4) -> list[dict[str, Any]]:
    """Of ranks on two cores with these costs, where all work takes so much longer when others compute too."""
    amounts = [[{str(i): s.amounts for i, s in enumerate(SAMPLES)}]] * 2
    slower = [max(1.0, crowding), whole]
    together = [{"0": {str(i): s.seconds * factor for i, s in enumerate(SAMPLES)}} for factor in slower]
    sizes = ((16.0, 2e7), (64.0, 8e6))
    pipelines = [
        {"messages": n, "bytes": size, "cores": n * TRUE.message + size * TRUE.byte} for n, size in sizes
    ]
    swaps = [
        {
            "messages": n,
            "bytes": size,
            "cores": n * TRUE.swap_message + size * TRUE.swap_byte,
            "travel": n / 2 * SWAPPING.seconds(size / n),
        }
        for n, size in sizes
    ]
    link = {"small": 1e-4 + 2 * TRUE.message, "large": 1e-4 + 2 * TRUE.message + 1e-3, "bytes": 1e6}
    busy = {"chunks": {"1": 0.1, "2": 0.1 * crowding}, "whole": {"1": 0.3, "2": 0.3 * whole}}
    first = {"baseline": 4e8, "amounts": amounts, "wholes": [False, True], "together": together, "busy": busy}
    took = turns_seconds(Cores(2, max(1.0, crowding), turns))
    first |= {
        "pipelines": pipelines,
        "swaps": swaps,
        "link": link,
        "turns": took,
        "turnsCut": as_lists(TURNS_CUT),
    }
    return [first, {}, {}, {}]


def test_the_machine_is_found_again_from_what_its_ranks_measured() -> None:
    found = hardware_of(answers(), cores=2)
    assert asdict(found.costs) == pytest.approx(asdict(TRUE), rel=1e-6)
    assert asdict(found.cores) == pytest.approx(
        asdict(Cores(2, crowding=1.2, turns=1.1, whole=1.4)), rel=1e-3
    )
    assert asdict(found.near) == pytest.approx(asdict(Link(1e9, 1e-4)))
    assert found.swapping is not None
    assert asdict(found.swapping) == pytest.approx(asdict(SWAPPING))


def test_ranks_are_never_thought_to_be_quicker_for_not_being_alone() -> None:
    found = hardware_of(answers(crowding=0.9, turns=0.5), cores=2)
    assert (found.cores.crowding, found.cores.turns) == (1.0, 1.0)


def test_a_machine_that_others_keep_busy_is_not_thought_to_lose_all_that_by_turns() -> None:
    assert hardware_of(answers(turns=9.0), cores=2).cores.turns == MOST


def test_of_several_calibrations_the_medians_count() -> None:
    several = answers(crowding=1.2) + answers(crowding=1.3) + answers(crowding=5.0)
    assert held_up(several, 2, "chunks") == pytest.approx(1.3)
    assert message_costs(several) == pytest.approx(MESSAGES)


def test_a_calibration_is_kept_and_one_of_another_version_is_not_used(tmp_path: Path) -> None:
    assert load_calibration(tmp_path) is None
    hardware = replace(
        CPU, name="here", costs=Costs(*range(1, 18)), cores=Cores(2, 1.3, 1.1, 1.4), swapping=SWAPPING
    )
    save_calibration(hardware, tmp_path)
    assert load_calibration(tmp_path) == hardware
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().replace(f'"format": {FORMAT}', '"format": 0'))
    assert load_calibration(tmp_path) is None


def test_a_quicker_gpu_is_quicker_in_everything_that_counts() -> None:
    a5000, a100, h100 = (KNOWN[f"{name}-100g"].costs for name in ("a5000", "a100", "h100"))
    for unit in ("edge", "row"):
        assert getattr(a5000, unit) > getattr(a100, unit) > getattr(h100, unit)
    assert a100.multiply > h100.multiply
