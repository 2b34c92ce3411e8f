"""Does a checkpoint belong to this job? What may change between two runs, and what may not."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import InvalidJob, parse_job
from gnnpipe_api.plan import Plan

# Where a graph lies may change: what is in it is compared by its content.
_GRAPH_PLACES = {"path", "root", "volume"}
# What makes other weights out of the same start. Epochs, learning rate and the cut may change on the way.
_TRAINING_FIXED = ("seed", "optimizer", "precision")


class BadCheckpoint(ValueError):
    """The folder holds checkpoints that this job cannot go on from; the sentence says why and what to do."""


def manifest_hash(job: GNNPipeJob) -> str:
    return hashlib.sha256(json.dumps(job.manifest(), sort_keys=True).encode()).hexdigest()


def as_of_today(saved: dict[str, Any]) -> dict[str, Any]:
    """A manifest that some version wrote, with the defaults of fields that it did not know."""
    try:
        return parse_job(saved).manifest()
    except InvalidJob:  # a newer version's
        return saved


def differences(saved: dict[str, Any], job: GNNPipeJob) -> list[str]:
    """What makes the saved manifest another job than this one, one clause each."""
    before, now = _essence(as_of_today(saved)), _essence(job.manifest())
    return [
        f"spec.{path} was {_shown(before.get(path))} and is {_shown(now.get(path))}"
        for path in sorted(before.keys() | now.keys())
        if before.get(path) != now.get(path)
    ]


def refuse_other_job(content: dict[str, Any], job: GNNPipeJob, graph: str, folder: str) -> None:
    """`graph` is the fingerprint of the graph's content."""
    different = differences(content["job"], job)
    if not different and content["graph"] != graph:
        different = ["the graph has other vertices, edges, features or labels than it had"]
    if different:
        raise BadCheckpoint(
            f"{folder} holds checkpoints of another job: {'; '.join(different)}. "
            "Name another folder with --out, or start over with --fresh"
        )


def same_cut(content: dict[str, Any], job: GNNPipeJob, plan: Plan, chunked_graph: str) -> bool:
    """Whether history can be taken as it is: the same rows on the same ranks, kept by the same rule."""
    before = as_of_today(content["job"])["spec"]["parallelism"]
    now = job.manifest()["spec"]["parallelism"]
    same_rule = before.get("history") == now.get("history")
    return bool(content["plan"] == plan.as_dict() and content["chunkedGraph"] == chunked_graph and same_rule)


def _essence(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    graph = {k: v for k, v in spec["graph"].items() if k not in _GRAPH_PLACES}
    model = {k: v for k, v in spec["model"].items() if k != "code"}
    training = {k: spec["training"].get(k) for k in _TRAINING_FIXED}
    parts = {"graph": graph, "model": model, "training": training}
    return {f"{part}.{key}": value for part, fields in parts.items() for key, value in fields.items()}


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)
