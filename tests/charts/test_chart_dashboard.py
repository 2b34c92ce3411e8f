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
from example_series import SCRAPE_SECONDS, all_series
from panels import stage_state
from rendered_chart import CHART, Helm


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
    """What promtool has to say against these checks of expressions over the example's series; empty if nothing."""
    inputs = [{"series": name, "values": climb.for_promtool()} for name, climb in all_series().items()]
    test = {"interval": f"{SCRAPE_SECONDS}s", "input_series": inputs, "promql_expr_test": checks}
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
    known = {re.match(r"\w+", name)[0] for name in all_series()}  # type: ignore[index]
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
