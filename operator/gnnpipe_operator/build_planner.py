"""The pod that settles auto, as data: a stage's pod without GPUs, peers, results and a scheduler for gangs."""

from __future__ import annotations

from typing import Any

from gnnpipe_api import contract
from gnnpipe_operator.actions import Accepted
from gnnpipe_operator.build_pod import as_line, environment, framed, trainer_container
from gnnpipe_operator.build_podgroup import queue_marks
from gnnpipe_operator.labels import PLANNER
from gnnpipe_operator.merge import merge
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.volumes import volumes_of


def build_planner(job: ObservedJob, accepted: Accepted, attempt: int, image: str) -> dict[str, Any]:
    """`image` serves jobs that name none."""
    spec = accepted.job.spec
    volumes, mounts = volumes_of(spec, trains=False)
    container = trainer_container(spec, image, mounts)
    container |= {
        "command": contract.PLANNER_COMMAND,
        "env": environment(
            spec,
            {
                contract.ENV_MANIFEST: as_line(accepted.job.manifest(defaults=False)),
                contract.ENV_ATTEMPT: str(attempt),
                contract.ENV_NAMESPACE: job.namespace,
                contract.ENV_CACHE: contract.CACHE_MOUNT,
            },
        ),
        "resources": {
            "requests": dict(spec.worker.resources.requests),
            "limits": dict(spec.worker.resources.limits),
        },
    }
    pod = framed(job, accepted, PLANNER, attempt, container, volumes)
    pod["metadata"]["labels"] |= queue_marks(spec.run_policy.scheduling)
    return merge(pod, spec.worker.template)
