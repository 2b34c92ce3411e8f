"""A machine that cannot run nodes is told why, before anything is built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness.preflight import lacks, refusal


def test_another_system_is_named(tmp_path: Path) -> None:
    other = tmp_path / "os-release"
    other.write_text('ID=fedora\nVERSION_ID="44"\n')
    assert any("not Debian 12" in sentence for sentence in lacks(other))


def test_without_root_nothing_else_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "you are not root" in list(lacks())[-1]


def test_what_the_kernel_refuses_is_told_in_its_own_words() -> None:
    assert refusal(["sh", "-c", "echo no room >&2; exit 1"]) == "no room"
    assert "absent-command" in (refusal(["absent-command"]) or "")
    assert refusal(["true"]) is None
