"""The GNNPipeJob: the one manifest that a person writes, for a laptop and for a cluster.

These models are the only source of the schema: the CRD (crd.py) and docs/manifest.md (reference.py) are made
from them. What one field cannot say about another is in rules.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gnnpipe_api.part import Part
from gnnpipe_api.problems import shown
from gnnpipe_api.spec_cluster import CheckpointSpec, RunPolicy, SchedulingSpec, WorkerSpec
from gnnpipe_api.spec_graph import GraphSpec, GraphVolume, Volume
from gnnpipe_api.spec_model import (
    BUILT_IN_MODELS,
    Averaging,
    Divergence,
    EarlyStopping,
    LearningRateSchedule,
    ModelCode,
    ModelSpec,
    TrainingSpec,
)
from gnnpipe_api.spec_parallelism import HistorySpec, ParallelismSpec

__all__ = [
    "BUILT_IN_MODELS",
    "MAX_NAME_LENGTH",
    "NAME_PATTERN",
    "Averaging",
    "CheckpointSpec",
    "Divergence",
    "EarlyStopping",
    "GNNPipeJob",
    "GraphSpec",
    "GraphVolume",
    "HistorySpec",
    "JobSpec",
    "LearningRateSchedule",
    "Metadata",
    "ModelCode",
    "ModelSpec",
    "ParallelismSpec",
    "RunPolicy",
    "SchedulingSpec",
    "TrainingSpec",
    "Volume",
    "WorkerSpec",
]

# Pods are called <job>-s<stage>-a<attempt>: 63 characters leave room for 999 stages and 99999 attempts.
MAX_NAME_LENGTH = 51
# The job's Service has its name, and Services must begin with a letter.
NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


def _fits_pods_and_service(name: str) -> str:
    if not re.fullmatch(NAME_PATTERN, name):
        raise PydanticCustomError(
            "job_name",
            "must begin with a letter and hold only a-z, 0-9 and dashes between them, got {name}.",
            {"name": shown(name)},
        )
    if len(name) > MAX_NAME_LENGTH:
        raise PydanticCustomError(
            "job_name",
            "must be at most {limit} characters long so that pod names fit into 63, but has {length}.",
            {"limit": MAX_NAME_LENGTH, "length": len(name)},
        )
    return name


JobName = Annotated[
    str,
    AfterValidator(_fits_pods_and_service),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN, "maxLength": MAX_NAME_LENGTH}),
]


class Metadata(Part):
    """The object's metadata; what Kubernetes adds to it is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: JobName
    """Name of the job; its pods are called `<name>-s<stage>-a<attempt>`."""
    namespace: str | None = None
    """Namespace of the job on Kubernetes."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the job."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the job."""


class JobSpec(Part):
    """What to train, on which graph, and how to cut it."""

    graph: GraphSpec
    """The graph: generated, a file, or a public data set by name."""
    model: ModelSpec
    """The graph neural network."""
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    """How the model is trained."""
    parallelism: ParallelismSpec = Field(default_factory=ParallelismSpec)
    """How layers and graph are cut. Stages x 1 is a pipeline, stages x ways is hybrid, 1 x ways is exact
    graph parallelism, 1 x 1 is plain full-batch training."""
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    """When training state is saved and where it lives."""
    worker: WorkerSpec = Field(default_factory=WorkerSpec)
    """The pods, one per stage. A local run does not use this."""
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    """How long the job may run, how often it may fail, and what is left of it. A local run does not use
    this."""


class GNNPipeJob(Part):
    """A whole manifest. Make one with `load.parse_job` or `load.load_job`: they check rules.py as
    well."""

    api_version: Literal["gnnpipe.io/v1alpha1"]
    kind: Literal["GNNPipeJob"]
    metadata: Metadata
    spec: JobSpec
    status: Annotated[None, BeforeValidator(lambda _: None)] = Field(default=None, exclude=True)
    """Written by the operator; not read here."""

    @property
    def name(self) -> str:
        return self.metadata.name

    def manifest(self, defaults: bool = True) -> dict[str, Any]:
        """The manifest as plain data with every default filled in, or with none of them, which a version that does
        not know all of today's fields can read too; parsing it gives the same job."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=not defaults)
