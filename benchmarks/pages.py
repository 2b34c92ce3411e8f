"""Puts what a benchmark found into a page, between two marks."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, mark: str, text: str) -> None:
    """Replace what lies between `<!-- mark -->` and `<!-- end of mark -->`."""
    begin, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"{page} has no place for this: put {begin} and {end} where it belongs")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")
