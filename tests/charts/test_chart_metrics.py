"""The example's series, on which dashboard and alerts are tested, are those that trainer and operator export."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

from example_series import OPERATOR_SERIES, stage_series
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gnnpipe_operator.metrics import REGISTRY, JobCollector
from gnnpipe_operator.observed import observe_job
from gnnpipe_operator.progress import Progress
from gnnpipe_operator.store import Store
from gnnpipe_trainer.meter import Figures
from gnnpipe_trainer.monitor import Monitor

Series = dict[str, set[str]]  # metric -> its labels' names
SCRAPED = {"pod"}  # added by the scrape


def of_example(series: dict[str, object]) -> Series:
    return {
        re.match(r"\w+", name)[0]: set(re.findall(r'(\w+)="', name)) - SCRAPED  # type: ignore[index]
        for name in series
    }


def of_scrape(text: str) -> Series:
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_trainer_exports_the_series_of_the_example(tmp_path: Path) -> None:
    figures = Figures(
        rank=1,
        stage=1,
        epoch=3,
        epoch_seconds=2.0,
        busy_seconds=5.0,
        idle_seconds={"forward": 1.0},
        wait_seconds={"pipeline": 1.0},
        sent_bytes={"pipeline": 10},
        received_bytes={"pipeline": 10},
        memory_bytes=1000,
        drift=0.1,
        block_drifts={"1": 0.1},
        stale_share=0.3,
        oscillation=-0.1,
        checkpoint_seconds=1.0,
        accuracy={"test": 0.5},
        loss=1.0,
    )
    (tmp_path / "rank1.json").write_text(json.dumps(asdict(figures)))
    monitor = Monitor(tmp_path, "j", "a", stage=1, attempt=0, epochs=10, ideal_bubble=0.1)
    answer = monitor.answer("/metrics")
    assert answer is not None
    assert of_scrape(answer[1].decode()) == of_example(dict(stage_series(1)))


def test_the_operator_exports_the_series_of_the_example() -> None:
    store = Store()
    metadata = {
        "name": "j",
        "namespace": "a",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    store.put_job(
        observe_job({"metadata": metadata, "spec": {}, "status": {"phase": "Running", "restarts": 1}})
    )
    told = Progress(epoch=1, epochs=2, bubble=0.2, bubble_ideal=0.1, bytes_per_epoch={"pipeline": 5})
    jobs = CollectorRegistry()
    jobs.register(JobCollector(store, {"u": told}))
    exported = of_scrape((generate_latest(jobs) + generate_latest(REGISTRY)).decode())
    wanted = of_example(dict(OPERATOR_SERIES))
    # A histogram has buckets too, and prometheus-client adds when each series began.
    assert {
        name: labels for name, labels in exported.items() if not name.endswith(("_bucket", "_created"))
    } == wanted
