"""Images built here and run on a node, without any registry."""

from __future__ import annotations

from pathlib import Path

from harness.cluster import Cluster
from harness.images import build_image, content_key


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


def test_an_image_is_built_once_and_runs_on_a_node(
    cluster: Cluster, node_namespace: str, tmp_path: Path
) -> None:
    dockerfile, tag = tmp_path / "hello.Dockerfile", "localhost/gnnpipe-hello:test"
    copied = tmp_path / "hello.py"
    copied.write_text("print('hello from', __file__)")
    dockerfile.write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY hello.py /hello.py\nUSER 65532\n")
    archive = build_image(dockerfile, tag, context=tmp_path, inputs=[copied])
    written = archive.stat().st_mtime_ns
    assert build_image(dockerfile, tag, context=tmp_path, inputs=[copied]).stat().st_mtime_ns == written

    cluster.import_image(archive)
    archive.unlink()
    inside = cluster.kubectl.inside(node_namespace)
    inside("run", "hello", f"--image={tag}", "--restart=Never", "--command", "--", "python3", "/hello.py")
    inside("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/hello", "--timeout=60s")
    assert inside("logs", "hello") == "hello from /hello.py\n"
    inside("delete", "pod", "hello", "--grace-period=0", "--force")
