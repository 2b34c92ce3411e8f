"""What the dependency audit says of the answers that it can get."""

from __future__ import annotations

import audit

FINE = {"name": "kopf", "version": "1.45.2", "vulns": []}
WEAK = {"name": "rich", "version": "15.0.0", "vulns": [{"id": "CVE-1", "fix_versions": ["15.0.1"]}]}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}


def test_a_known_weakness_fails_with_the_way_out() -> None:
    code, told = audit.verdict({"dependencies": [FINE, WEAK]}, insist=False)
    assert code == 1
    assert "rich 15.0.0: CVE-1, mended in 15.0.1" in told


def test_a_clean_answer_names_what_was_not_looked_at() -> None:
    assert audit.verdict({"dependencies": [FINE, UNKNOWN]}, insist=True) == (
        0,
        "1 packages audited, no known weakness; not on the list: torch",
    )


def test_no_answer_is_never_told_as_a_clean_one() -> None:
    for answer in ({}, {"dependencies": [UNKNOWN]}):
        code, told = audit.verdict(answer, insist=False)
        assert (code, told.startswith("NOT AUDITED")) == (0, True)
        assert audit.verdict(answer, insist=True)[0] == 1
