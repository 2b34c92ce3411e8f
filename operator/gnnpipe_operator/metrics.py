"""The operator's metrics. Those of jobs are read from live state at scrape time, so they end with their jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gnnpipe_api.status import Phase
from gnnpipe_operator.observed import ObservedJob
from gnnpipe_operator.progress import Progress, told_before
from gnnpipe_operator.store import Store

REGISTRY = CollectorRegistry()
RECONCILE_SECONDS = Histogram(
    "gnnpipe_reconcile_seconds",
    "Seconds to look at one job and do what is to be done",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 15),
    registry=REGISTRY,
)
RECONCILE_ERRORS = Counter(
    "gnnpipe_reconcile_errors", "Looks at a job that failed and are tried again", registry=REGISTRY
)
LABELS = ("job", "namespace")


class JobCollector(Collector):
    """`progress` is what the pods said last, by the job's uid; the status is older but survives a restart."""

    def __init__(self, store: Store, progress: Mapping[str, Progress]) -> None:
        self._store = store
        self._progress = progress

    def collect(self) -> Iterable[Metric]:
        phase = GaugeMetricFamily(
            "gnnpipe_job_phase", "1 for the job's phase, else 0", labels=(*LABELS, "phase")
        )
        ratio = GaugeMetricFamily(
            "gnnpipe_job_progress_ratio", "Epochs done out of those asked for", labels=LABELS
        )
        epoch = GaugeMetricFamily("gnnpipe_job_epoch", "Epochs done", labels=LABELS)
        restarts = CounterMetricFamily("gnnpipe_job_restarts", "Restarts of the whole gang", labels=LABELS)
        bubble = GaugeMetricFamily("gnnpipe_job_bubble_ratio", "Share of time that ranks wait", labels=LABELS)
        ideal = GaugeMetricFamily("gnnpipe_job_bubble_ideal_ratio", "The least possible share", labels=LABELS)
        sent = GaugeMetricFamily(
            "gnnpipe_job_comm_bytes_per_epoch",
            "Bytes handed to the network per epoch",
            labels=(*LABELS, "kind"),
        )
        for job in self._store.jobs():
            who = [job.name, job.namespace]
            for name in get_args(Phase):
                phase.add_metric([*who, name], float((job.status.phase or "Pending") == name))
            restarts.add_metric(who, job.status.restarts)
            now = self._figures(job)
            for family, value in ((epoch, now.epoch), (bubble, now.bubble), (ideal, now.bubble_ideal)):
                if value is not None:
                    family.add_metric(who, value)
            if now.epoch is not None and now.epochs:
                ratio.add_metric(who, now.epoch / now.epochs)
            for kind, count in (now.bytes_per_epoch or {}).items():
                sent.add_metric([*who, kind], count)
        return [phase, ratio, epoch, restarts, bubble, ideal, sent]

    def describe(self) -> Iterable[Metric]:
        return []  # nothing is known before the first job

    def _figures(self, job: ObservedJob) -> Progress:
        if job.uid in self._progress and not job.status.finished:
            return self._progress[job.uid]
        return told_before(job.status)
