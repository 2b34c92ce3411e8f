"""The dashboard: valid JSON whose every query Prometheus understands and answers."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from dashboard import stage_state
from rendered_chart import CHART, Helm

# The series of two stages that train for ten minutes, one for each metric that trainer and operator export.
# The first stage is busy throughout; the second mostly waits.
WORKER = 'namespace="a", job="j", stage="{stage}", rank="{stage}"'
TRAINER_SERIES = {
    "gnnpipe_loss{{{worker}}}": "5-0.1x20",
    'gnnpipe_accuracy{{{worker}, split="test"}}': "0.1+0.01x20",
    "gnnpipe_epoch{{{worker}}}": "0+1x20",
    "gnnpipe_epoch_seconds{{{worker}}}": "30x20",
    "gnnpipe_history_drift{{{worker}}}": "0.1x20",
    "gnnpipe_checkpoint_seconds{{{worker}}}": "2x20",
    "gnnpipe_memory_bytes{{{worker}}}": "1000x20",
    'gnnpipe_comm_bytes_total{{{worker}, kind="pipeline", direction="sent"}}': "0+500x20",
}
STAGE_SECONDS = {  # per 30 s between two scrapes: busy, waiting, sending
    "0": (25, 3, 2),
    "1": (5, 20, 5),
    "2": (5, 5, 20),
}
OPERATOR_SERIES = {
    'gnnpipe_job_phase{namespace="a", job="j", phase="Running"}': "1x20",
    'gnnpipe_job_progress_ratio{namespace="a", job="j"}': "0+0.01x20",
    'gnnpipe_job_epoch{namespace="a", job="j"}': "0+1x20",
    'gnnpipe_job_restarts_total{namespace="a", job="j"}': "0x20",
    'gnnpipe_job_bubble_ratio{namespace="a", job="j"}': "0.2x20",
    'gnnpipe_job_bubble_ideal_ratio{namespace="a", job="j"}': "0.1x20",
    'gnnpipe_job_comm_bytes_per_epoch{namespace="a", job="j", kind="pipeline"}': "500x20",
    'gnnpipe_reconcile_seconds_sum{pod="operator"}': "0+1x20",
    'gnnpipe_reconcile_seconds_count{pod="operator"}': "0+10x20",
    'gnnpipe_reconcile_errors_total{pod="operator"}': "0x20",
}


def series() -> dict[str, str]:
    found = dict(OPERATOR_SERIES)
    for stage, (busy, idle, sending) in STAGE_SECONDS.items():
        worker = WORKER.format(stage=stage)
        found |= {name.format(worker=worker): values for name, values in TRAINER_SERIES.items()}
        found[f"gnnpipe_stage_busy_seconds_total{{{worker}}}"] = f"0+{busy}x20"
        # Two reasons, to be added up.
        found[f'gnnpipe_stage_idle_seconds_total{{{worker}, reason="forward"}}'] = f"0+{idle - 1}x20"
        found[f'gnnpipe_stage_idle_seconds_total{{{worker}, reason="backward"}}'] = "0+1x20"
        if stage != "0":
            found[f'gnnpipe_comm_wait_seconds_total{{{worker}, kind="pipeline"}}'] = f"0+{sending}x20"
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "dashboards/gnnpipe.json").read_text())
    return found


@pytest.fixture(scope="module")
def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def as_grafana_sends_it(query: str) -> str:
    for name, value in {"$__rate_interval": "2m", "$namespace": "a", "$job": "j"}.items():
        query = query.replace(name, value)
    return query


def run_promtool(promtool: Path, folder: Path, checks: list[dict[str, Any]]) -> str:
    """What promtool has to say against these checks of expressions over `series()`; empty if nothing."""
    inputs = [{"series": name, "values": values} for name, values in series().items()]
    test = {"interval": "30s", "input_series": inputs, "promql_expr_test": checks}
    (folder / "queries.yaml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", folder / "queries.yaml"], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_every_panel_asks_the_chosen_datasource(dashboard: dict[str, Any]) -> None:
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert {target["datasource"]["uid"] for target in targets} == {"${datasource}"}
    assert "datasource" in [variable["name"] for variable in dashboard["templating"]["list"]]


def test_the_queries_use_every_metric_and_no_other(dashboard: dict[str, Any]) -> None:
    known = {re.match(r"\w+", name)[0] for name in series()}  # type: ignore[index]
    used = set(re.findall(r"gnnpipe_\w+", json.dumps(dashboard["panels"])))
    # The operator's epoch stands for the trainer's: it stays when the pods are gone.
    assert used == known - {"gnnpipe_epoch"}


def test_every_query_is_answered(promtool: Path, queries: list[str], tmp_path: Path) -> None:
    checks = [
        {
            "expr": f"count({as_grafana_sends_it(query)}) > bool 0",
            "eval_time": "5m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for query in queries
    ]
    assert run_promtool(promtool, tmp_path, checks) == ""


def test_the_timeline_tells_busy_waiting_and_sending_apart(promtool: Path, tmp_path: Path) -> None:
    waiting, busy, sending = 0, 1, 2
    expected = {"0": busy, "1": waiting, "2": sending}
    samples = [{"labels": f'{{stage="{stage}"}}', "value": value} for stage, value in expected.items()]
    check = {"expr": as_grafana_sends_it(stage_state()), "eval_time": "5m", "exp_samples": samples}
    assert run_promtool(promtool, tmp_path, [check]) == ""


def test_the_sidecar_finds_the_dashboard_as_it_is_in_the_repository(
    helm: Helm, dashboard: dict[str, Any]
) -> None:
    found = helm.render().one("ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["gnnpipe.json"]) == dashboard
    elsewhere = helm.render({"dashboard.namespace": "grafana"}).one("ConfigMap")
    assert elsewhere["metadata"]["namespace"] == "grafana"
    assert "ConfigMap" not in helm.render({"dashboard.enabled": False}).kinds()
