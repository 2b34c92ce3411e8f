"""The alerts, run by Prometheus' own test tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendered_chart import Helm

UNIT_TESTS = Path(__file__).with_name("alerts.test.yaml")


@pytest.fixture(scope="module")
def rules(helm: Helm) -> dict[str, Any]:
    """The groups of rules as Prometheus will load them."""
    found: dict[str, Any] = helm.render().one("PrometheusRule")["spec"]
    return found


def test_alerts_fire_when_they_should_and_not_before(
    promtool: Path, rules: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    shutil.copy(UNIT_TESTS, tmp_path)
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / UNIT_TESTS.name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_firing_and_not_firing(rules: dict[str, Any]) -> None:
    checks = [
        check for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"] for check in test["alert_rule_test"]
    ]
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == alerts
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == alerts


def test_thresholds_and_severity_follow_the_values(helm: Helm) -> None:
    chosen = {"alerts.bubbleRatio": 0.25, "alerts.stuckMinutes": 5, "alerts.severity": "critical"}
    spec = helm.render(chosen).one("PrometheusRule")["spec"]
    alerts = {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"]}
    assert "gnnpipe_job_bubble_ratio > 0.25" in alerts["GNNPipeBubbleHigh"]["expr"]
    assert alerts["GNNPipeJobStuck"]["for"] == "5m"
    assert alerts["GNNPipeJobStuck"]["labels"] == {"severity": "critical"}
