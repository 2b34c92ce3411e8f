"""docs/manifest.md is made from the models and never behind them."""

from __future__ import annotations

from pathlib import Path

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.problems import field_paths
from gnnpipe_api.reference import manifest_reference

PAGE = Path(__file__).parents[2] / "docs" / "manifest.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == manifest_reference(), "run: gnnpipe docs > docs/manifest.md"


def test_every_field_is_on_the_page() -> None:
    page = manifest_reference()
    fields = [path for path in field_paths(GNNPipeJob) if path.startswith("spec.")]
    assert len(fields) > 60
    assert [path for path in fields if f"`{path.rsplit('.', 1)[-1]}`" not in page] == []
