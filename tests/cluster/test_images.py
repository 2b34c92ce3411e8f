"""What a built image is known by. How one is built and runs is in test_nodes.py."""

from __future__ import annotations

from pathlib import Path

from harness.images import content_key


def test_a_key_changes_with_content_names_and_arguments(tmp_path: Path) -> None:
    folder = tmp_path / "api"
    folder.mkdir()
    (folder / "a.py").write_text("1")
    first = content_key([folder], ["tag"])
    assert content_key([folder], ["tag"]) == first
    assert content_key([folder], ["other"]) != first
    (folder / "a.py").write_text("2")
    second = content_key([folder], ["tag"])
    (folder / "a.py").rename(folder / "b.py")
    assert len({first, second, content_key([folder], ["tag"])}) == 3


def test_bytecode_is_no_part_of_a_key(tmp_path: Path) -> None:
    before = content_key([tmp_path], [])
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("x")
    assert content_key([tmp_path], []) == before
