"""Values: wrong ones are refused with their path, and every one is known, documented and used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from rendered_chart import CHART, Helm


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> set[str]:
    """Dotted paths of all values; a value that people fill as a whole (`{}`, resources) counts as one."""
    found = set()
    for key, value in values.items():
        whole = not value or key in ("resources", "labels")
        if isinstance(value, dict) and not whole:
            found |= leaves(value, (*path, key))
        else:
            found.add(".".join((*path, key)))
    return found


@pytest.fixture(scope="module")
def values() -> set[str]:
    return leaves(yaml.safe_load((CHART / "values.yaml").read_text()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", "two"),
        ("replicas", -1),
        ("replica", 2),
        ("logLevel", "loud"),
        ("image.pullPolicy", "Sometimes"),
        ("image.digest", "sha256:abc"),
        ("image.tag", "a b"),
        ("rbac.podGroups", ["kueue"]),
        ("watchNamespace", "Team_A"),
        ("serviceAccount.create", False),
        ("monitoring.podMonitor.enabled", "auto"),
        ("monitoring.intervalSeconds", 0),
        ("alerts.bubbleRatio", 1.5),
        ("alerts.stuckMinutes", 0.5),
        ("networkPolicy.apiServerPorts", []),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(helm: Helm, path: str, value: Any) -> None:
    done = helm.template({path: value})
    assert done.returncode != 0
    assert path.split(".")[-1] in done.stderr or path.split(".")[0] in done.stderr


def test_the_schema_knows_every_value(values: set[str]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path in values:
        node = schema
        for key in path.split("."):
            node = schema["definitions"][node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node
            assert key in node["properties"], path
            node = node["properties"][key]


def test_every_value_has_a_row_in_the_readme(values: set[str]) -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE)
    assert set(rows) == values
    assert len(rows) == len(values)


def test_every_value_is_used_by_a_template(values: set[str]) -> None:
    templates = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    for path in values:
        parent = path.rsplit(".", 1)[0]
        used = f".Values.{path}" in templates or (parent in ("image", "trainerImage") and parent in templates)
        assert used, f"{path} is in values.yaml and in no template"
