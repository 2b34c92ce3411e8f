"""Costs are found from what was measured, kept, and used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_trainer.pipeline.schedule import Work
from gnnpipe_trainer.planning.calibrate import UNITS, Sample, edge_seconds, errors, fit, measure
from gnnpipe_trainer.planning.hardware import CPU, KNOWN, Costs
from gnnpipe_trainer.planning.stored import FILE, load_calibration, save_calibration

TRUE = CPU.costs


def sample(work: Work, **amounts: float) -> Sample:
    every = {unit: 0.0 for unit in (*UNITS, "edge")} | amounts
    costs = asdict(TRUE)
    return Sample(work, every, sum(costs[unit] * amount for unit, amount in every.items()))


SAMPLES = [
    sample(Work.FORWARD, multiply=1e9, edge=3e8, row=1e7, random=2e6, forward_block=4),
    sample(Work.FORWARD, multiply=2e8, edge=1e9, row=5e7, forward_block=64),
    sample(Work.FORWARD, multiply=3e8, conv=2e6, row=2e6, random=9e5, forward_block=8),
    sample(Work.INPUT_GRADIENT, multiply=1e9, edge=2e8, row=3e7, refresh=2e5, backward_block=4),
    sample(Work.INPUT_GRADIENT, multiply=5e8, edge=9e8, row=1e7, refresh=2e6, backward_block=64),
    sample(Work.INPUT_GRADIENT, multiply=2e8, conv=4e6, row=6e6, backward_block=8),
    sample(Work.WEIGHT_GRADIENT, multiply=1e9, weight_block=4),
    sample(Work.WEIGHT_GRADIENT, multiply=4e8, weight_block=64),
    sample(Work.FORWARD, row=1e8, random=3e7, forward_block=2),
]


def test_costs_that_explain_the_samples_are_found_again() -> None:
    found = fit(SAMPLES, edge=TRUE.edge, message=TRUE.message)
    for unit, cost in asdict(TRUE).items():
        assert getattr(found, unit) == pytest.approx(cost, rel=1e-6), unit
    assert max(map(abs, errors(SAMPLES, found))) < 1e-6


def test_no_cost_is_negative_however_odd_the_samples() -> None:
    odd = [replace(s, seconds=s.seconds * (1 + 0.5 * (-1) ** i)) for i, s in enumerate(SAMPLES)]
    assert min(asdict(fit(odd, TRUE.edge, TRUE.message)).values()) >= 0


def test_the_engines_own_actions_are_measured_and_all_but_the_constant_ones_have_work(
    job: Callable[..., GNNPipeJob],
) -> None:
    samples = measure(job("gcnii", 4, stages=2, chunks=3))
    assert [s.work for s in samples] == [*Work, *Work]
    assert all(s.seconds > 0 for s in samples)
    assert all(s.amounts["multiply"] > 0 for s in samples)
    assert 0 < edge_seconds(rows=50, degree=5, width=8) < 1e-3


def test_a_calibration_is_kept_and_one_of_another_version_is_not_used(tmp_path: Path) -> None:
    assert load_calibration(tmp_path) is None
    hardware = replace(CPU, name="here", costs=Costs(*range(1, 12)), cores=2)
    save_calibration(hardware, tmp_path)
    assert load_calibration(tmp_path) == hardware
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text().replace('"format": 1', '"format": 0'))
    assert load_calibration(tmp_path) is None


def test_a_quicker_gpu_is_quicker_in_everything_that_counts() -> None:
    a5000, a100, h100 = (KNOWN[f"{name}-100g"].costs for name in ("a5000", "a100", "h100"))
    for unit in ("edge", "row"):
        assert getattr(a5000, unit) > getattr(a100, unit) > getattr(h100, unit)
    assert a100.multiply > h100.multiply
