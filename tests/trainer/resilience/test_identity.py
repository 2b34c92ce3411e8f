"""A checkpoint belongs to the job that wrote it, whichever version of the manifest that knew."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import parse_job
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.checkpoint.identity import differences, refuse_other_job, same_cut

WRITTEN: dict[str, Any] = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "metadata": {"name": "kept"},
    "spec": {
        "graph": {"source": "synthetic", "vertices": 100},
        "model": {"kind": "gcn", "layers": 4},
        "parallelism": {"stages": 2, "chunks": 4},
    },
}


@pytest.fixture
def job() -> GNNPipeJob:
    return parse_job(WRITTEN)


def as_written_before(job: GNNPipeJob, *paths: str) -> dict[str, Any]:
    """What a version that knew no such fields would have saved."""
    saved = copy.deepcopy(job.manifest())
    for path in paths:
        *sections, last = path.split(".")
        here = saved
        for section in sections:
            here = here[section]
        del here[last]
    return saved


def test_a_field_that_came_later_makes_no_other_job(job: GNNPipeJob) -> None:
    saved = as_written_before(job, "spec.graph.homophily", "spec.model.dropout", "spec.training")
    assert differences(saved, job) == []
    content = {"job": saved, "graph": "same"}
    refuse_other_job(content, job, "same", "checkpoints")


def test_a_field_that_came_later_keeps_history_as_it_is(job: GNNPipeJob) -> None:
    plan = make_plan(job)
    saved = as_written_before(job, "spec.parallelism.history.correction")
    content = {"job": saved, "plan": plan.as_dict(), "chunkedGraph": "abc"}
    assert same_cut(content, job, plan, "abc")
    saved["spec"]["parallelism"]["history"]["decay"] = 0.5
    assert not same_cut(content, job, plan, "abc")


def test_what_a_newer_version_saved_is_compared_as_it_is(job: GNNPipeJob) -> None:
    saved = copy.deepcopy(job.manifest())
    saved["spec"]["model"]["colour"] = "red"
    assert differences(saved, job) == ['spec.model.colour was "red" and is not set']


def test_another_seed_is_another_job(job: GNNPipeJob) -> None:
    saved = copy.deepcopy(job.manifest())
    saved["spec"]["training"]["seed"] = 1
    assert differences(saved, job) == ["spec.training.seed was 1 and is 0"]
