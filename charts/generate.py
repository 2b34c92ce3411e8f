"""Write the parts of the chart that follow from something else: the CRD, the dashboard, the README's table.

Run it after a change of the api, of panels.py or of values.yaml; tests/charts fail until it was.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from dashboard import dashboard

from gnnpipe_api.crd import crd

CHART = Path(__file__).parent / "gnnpipe"
TABLE = re.compile(
    r"(?<=<!-- values: generated from values.yaml -->\n).*(?=<!-- end of values -->)", re.DOTALL
)


def crd_yaml(cel: bool) -> str:
    """The CRD, told to stay when the chart goes: with it would go every job in the cluster."""
    definition = crd(cel=cel)
    annotations = definition["metadata"].setdefault("annotations", {})
    annotations["helm.sh/resource-policy"] = "keep"
    return yaml.safe_dump(definition, sort_keys=False, width=110)


def values_table(source: str) -> str:
    """A row for each value that has a `# --` comment, in the file's order."""
    values: dict[str, Any] = yaml.safe_load(source)
    rows = ["| Value | Default | What it is |", "|---|---|---|"]
    path: list[str] = []
    about = ""
    for line in source.splitlines():
        comment = re.fullmatch(r" *# -- (.*)", line)
        key = re.match(r"( *)(\w+):", line)
        if comment:
            about = comment[1]
        elif key:
            path = [*path[: len(key[1]) // 2], key[2]]
            if about:
                rows.append(f"| `{'.'.join(path)}` | `{json.dumps(at(values, path))}` | {about} |")
            about = ""
    return "\n".join(rows) + "\n"


def at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def generated() -> dict[Path, str]:
    """Every generated file with the text that it should have."""
    readme = CHART / "README.md"
    table = values_table((CHART / "values.yaml").read_text())
    return {
        CHART / "files/crd.yaml": crd_yaml(cel=False),
        CHART / "files/crd-cel.yaml": crd_yaml(cel=True),
        CHART / "dashboards/gnnpipe.json": json.dumps(dashboard(), indent=2) + "\n",
        readme: TABLE.sub(lambda _: table, readme.read_text()),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
