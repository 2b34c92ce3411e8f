"""What the dependency audit says of the answers that it can get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import audit
import pytest

FINE = {"name": "kopf", "version": "1.45.2", "vulns": []}
WEAK = {"name": "rich", "version": "15.0.0", "vulns": [{"id": "CVE-1", "fix_versions": ["15.0.1"]}]}
UNKNOWN = {"name": "torch", "version": "2.13.0", "skip_reason": "not found"}


def test_a_known_weakness_fails_with_the_way_out() -> None:
    code, told = audit.verdict([FINE, WEAK], insist=False)
    assert code == 1
    assert "rich 15.0.0: CVE-1, mended in 15.0.1" in told


def test_what_was_not_looked_at_is_named_and_fails_who_insists() -> None:
    told = "1 packages audited, no known weakness; NOT AUDITED: torch 2.13.0"
    assert audit.verdict([FINE, UNKNOWN], insist=False) == (0, told)
    assert audit.verdict([FINE, UNKNOWN], insist=True) == (1, told)


def test_no_answer_is_never_told_as_a_clean_one() -> None:
    for answer in ([], [UNKNOWN]):
        code, told = audit.verdict(answer, insist=False)
        assert (code, told.startswith("NOT AUDITED")) == (0, True)
        assert audit.verdict(answer, insist=True)[0] == 1


PAGE: dict[str, Any] = {
    "info": {"version": "2.0"},
    "vulnerabilities": [
        {"id": "CVE-2", "fixed_in": [], "withdrawn": None},
        {"id": "CVE-3", "fixed_in": [], "withdrawn": "2026-01-01"},
    ],
    "releases": {"2.0": [{"yanked": False}], "1.0": [{"yanked": False}], "0.9": [{"yanked": True}]},
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A package index that has a page for the newest version only."""
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing/json").write_text(json.dumps(PAGE))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    Thread(target=server.serve_forever).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_index_knows_the_weaknesses_of_the_newest_version(index: str) -> None:
    assert audit.ask_index(index, "thing", "2.0")["vulns"] == [{"id": "CVE-2", "fix_versions": []}]


def test_an_older_version_counts_as_audited_only_when_it_was_taken_back(index: str) -> None:
    assert audit.ask_index(index, "thing", "1.0")["skip_reason"] == "the index tells of 2.0 only"
    taken_back = {"id": "taken back by its authors", "fix_versions": ["2.0"]}
    assert audit.ask_index(index, "thing", "0.9")["vulns"] == [taken_back]


def test_a_package_that_the_index_does_not_have_is_not_audited(index: str) -> None:
    assert "404" in audit.ask_index(index, "absent", "1.0")["skip_reason"]


def test_only_what_was_left_open_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, index: str, tmp_path: Path
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("Rich==15.0.0\nthing==1.0\n")
    monkeypatch.setattr(audit, "CONSTRAINTS", constraints)
    left_open = {"name": "thing", "skip_reason": "not found"}
    weak, thing = audit.second_opinion([WEAK, left_open], index)
    assert weak == WEAK
    assert thing["skip_reason"] == "the index tells of 2.0 only"
