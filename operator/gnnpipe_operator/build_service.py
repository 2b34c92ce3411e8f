"""The headless Service that gives each stage's pod its DNS name."""

from __future__ import annotations

from typing import Any

from gnnpipe_api.contract import MASTER_PORT, MONITOR_PORT, MONITOR_PORT_NAME
from gnnpipe_operator.labels import LABEL_JOB, LABEL_MANAGED_BY, MANAGER, service_name
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.owner import owner_reference


def build_service(job: ObservedJob) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(job.name),
            "namespace": job.namespace,
            "labels": {LABEL_JOB: job.name, LABEL_MANAGED_BY: MANAGER},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "clusterIP": "None",
            # Ranks find each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB: job.name},
            "ports": [
                {"name": "rendezvous", "port": MASTER_PORT},
                {"name": MONITOR_PORT_NAME, "port": MONITOR_PORT},
            ],
        },
    }
