"""What kopf tells, and what becomes of it: events feed the store and kick the queue; nothing is decided here.

Only indexes and raw-event handlers are used. They write nothing to any object: no finalizer that could keep a
namespace from being deleted while the operator is down, no annotation, and no second writer of the status.
Existing objects come as events too when the operator starts, which is all that on.resume would give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf

from gnnpipe_api.contract import GROUP, PLURAL, VERSION
from gnnpipe_operator.api_client import login
from gnnpipe_operator.labels import LABEL_JOB
from gnnpipe_operator.observed import job_of_pod, observe_job, observe_pod
from gnnpipe_operator.reconcile import Reconciler
from gnnpipe_operator.store import Key, Store
from gnnpipe_operator.workqueue import WorkQueue


def configure(settings: kopf.OperatorSettings) -> None:
    settings.posting.enabled = False  # Events are written by us, with names that make them repeatable
    settings.scanning.disabled = True  # no right to list CRDs and namespaces is needed
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 1.0
    settings.watching.server_timeout = 300
    settings.watching.label_selectors["pods"] = LABEL_JOB  # of a large cluster only our pods
    settings.persistence.finalizer = f"{GROUP}/operator"  # never set; named all the same
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"operator.{GROUP}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"operator.{GROUP}")


def register(registry: kopf.OperatorRegistry, store: Store, queue: WorkQueue, reconciler: Reconciler) -> None:
    """kopf runs indexers over all that exists before the first handler runs, so no job is judged before its
    pods are known."""
    lose = loser(store, queue, reconciler)

    @kopf.on.login(registry=registry, retries=10, backoff=3)
    def log_in(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo:
        return login(settings)

    @kopf.index(GROUP, VERSION, PLURAL, registry=registry, retries=1)
    async def index_job(body: kopf.Body, **_: Any) -> None:
        store.put_job(observe_job(body))

    @kopf.index("pods", labels={LABEL_JOB: kopf.PRESENT}, registry=registry, retries=1)  # type: ignore[arg-type]
    async def index_pod(body: kopf.Body, namespace: str, **_: Any) -> None:
        name = job_of_pod(body)
        if name:
            store.put_pod((namespace, name), observe_pod(body))

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)  # type: ignore[arg-type]
    async def job_changed(event: kopf.RawEvent, namespace: str, name: str, uid: str, **_: Any) -> None:
        if event["type"] == "DELETED":
            lose("jobs", (namespace, name), uid)
        queue.kick((namespace, name))

    @kopf.on.event("pods", labels={LABEL_JOB: kopf.PRESENT}, registry=registry)  # type: ignore[arg-type]
    async def pod_changed(event: kopf.RawEvent, namespace: str, body: kopf.Body, uid: str, **_: Any) -> None:
        name = job_of_pod(body)
        if name is None:
            return
        if event["type"] == "DELETED":
            lose("pods", (namespace, name), uid)
        queue.kick((namespace, name))


def loser(store: Store, queue: WorkQueue, reconciler: Reconciler) -> Callable[[str, Key, str], None]:
    """What to do when an object is gone, whether a watch or a listing said so."""

    def lose(kind: str, key: Key, uid: str) -> None:
        if kind == "jobs":
            store.drop_job(key, uid)
            reconciler.forget(uid)
            queue.forget(key)
        else:
            store.drop_pod(key, uid)
        queue.kick(key)

    return lose
