"""The owner reference by which Kubernetes' own garbage collector cleans up after a job: no finalizer needed."""

from __future__ import annotations

from typing import Any

from gnnpipe_api.contract import GROUP, KIND, VERSION
from gnnpipe_operator.observed import ObservedJob


def owner_reference(job: ObservedJob) -> dict[str, Any]:
    # blockOwnerDeletion would need a right on finalizers where OwnerReferencesPermissionEnforcement is on.
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
