"""The chart's generated files are those that the generator makes today."""

from __future__ import annotations

import yaml
from generate import CHART, generated, values_table

from gnnpipe_api.crd import crd


def test_generated_files_are_up_to_date() -> None:
    stale = [str(path.relative_to(CHART)) for path, text in generated().items() if path.read_text() != text]
    assert stale == [], "run: .venv/bin/python charts/generate.py"


def test_the_charts_definition_says_what_the_api_says() -> None:
    for name, cel in {"crd.yaml": False, "crd-cel.yaml": True}.items():
        definition = yaml.safe_load((CHART / "files" / name).read_text())
        assert definition["spec"] == crd(cel=cel)["spec"]


def test_the_values_table_takes_nested_values_in_their_order() -> None:
    source = 'a:\n  # -- First\n  b: 1\n  c:\n    # -- Deep\n    d: [x]\n# -- Last\ne: ""\nf: 2\n'
    rows = values_table(source).splitlines()[2:]
    assert rows == ["| `a.b` | `1` | First |", '| `a.c.d` | `["x"]` | Deep |', '| `e` | `""` | Last |']
