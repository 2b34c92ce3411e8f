"""`spec.checkpoint`, `spec.worker` and `spec.runPolicy`: what Kubernetes needs to know."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from gnnpipe_api.part import INT_OR_STRING, Count, Object, Part, Seconds
from gnnpipe_api.spec_graph import Volume


def _quantity(value: object) -> object:
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PydanticCustomError(
        "quantity", "must be a quantity in quotes or a whole number, such as '500m' or 2"
    )


Quantity = Annotated[int | str, BeforeValidator(_quantity), WithJsonSchema(INT_OR_STRING)]


class CheckpointSpec(Part):
    """When training state is saved and where it lives."""

    every_epochs: Count = 10
    """Epochs between two checkpoints."""
    keep: Count = 2
    """How many checkpoints are kept; older ones are deleted."""
    volume: Volume | None = None
    """Volume for checkpoints and results, shared by all pods of the job. Left out, they live and die with
    the pods, and a restart begins anew."""


class Resources(Part):
    """What each pod asks for besides its GPUs."""

    requests: dict[str, Quantity] = Field(default_factory=dict)
    """What the scheduler sets aside for each pod, for example cpu and memory."""
    limits: dict[str, Quantity] = Field(default_factory=dict)
    """What each pod may use at most."""


class WorkerSpec(Part):
    """The pods, one per stage."""

    image: str | None = None
    """Container image of the trainer. Left out, the operator's default is used."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled. Left out, Kubernetes decides by the image's tag."""
    resources: Resources = Field(default_factory=Resources)
    """CPU and memory of each pod. GPUs are added by the operator, one per way."""
    gpu_resource: str = "nvidia.com/gpu"
    """Resource name under which the cluster offers GPUs."""
    network: Literal["default", "rdma", "efa"] = "default"
    """Preset of network settings for NCCL: default, rdma (InfiniBand, RoCE) or efa (AWS)."""
    template: Object = Field(default_factory=dict)
    """Any fields of a pod template (metadata and spec), merged into the pods; the container is called
    trainer."""


class SchedulingSpec(Part):
    """How the pods of a job come to be placed together."""

    gang: Literal["none", "volcano", "scheduler-plugins", "kueue"] = "none"
    """Who sees to it that all pods start together or none does."""
    queue: str | None = None
    """Queue of Volcano or Kueue that the job waits in."""
    priority_class: str | None = None
    """PriorityClass of the pods."""
    topology_key: str | None = None
    """Node label whose value the stages should share, so that neighbours sit close, for example
    topology.kubernetes.io/zone."""


class RunPolicy(Part):
    """How long a job may run, how often it may fail, and what is left of it."""

    suspend: bool = False
    """Stop the pods and keep the checkpoint; set back to false, the job goes on from there."""
    backoff_limit: Annotated[int, Field(ge=0)] = 3
    """How often the job is restarted after failures in a row. Preemption and lost nodes do not count, and new
    epochs in the checkpoint begin a new count."""
    active_deadline_seconds: Seconds | None = None
    """Seconds the job may be active, suspended time not counted; after that it fails."""
    pre_running_deadline_seconds: Seconds | None = None
    """Seconds an attempt may take until all its pods run; after that the job fails."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Seconds after which a finished job is deleted. Left out, it stays."""
    clean_pods: Literal["Running", "All", "None"] = "Running"
    """Which pods are deleted when the job is finished: those still running, all, or none."""
    managed_by: str | None = None
    """Name of another controller that looks after this job; the operator then leaves it alone."""
    scheduling: SchedulingSpec = Field(default_factory=SchedulingSpec)
    """How the pods of the job come to be placed together."""
