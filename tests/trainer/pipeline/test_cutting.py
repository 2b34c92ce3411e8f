"""Where layers are cut: by cost if that is clearly better, and for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rank_pool import RankPool
from rank_tasks import agreed_cuts

from gnnpipe_api.plan import better_cut


def test_noise_does_not_move_an_even_cut() -> None:
    costs = [1.0, 1.05, 0.97, 1.02, 1.0, 0.99, 1.03, 1.01]
    assert better_cut((4, 4), costs) == (4, 4)


def test_a_heavy_first_layer_moves_the_cut() -> None:
    assert better_cut((4, 4), [5.0, 1, 1, 1, 1, 1, 1, 1]) == (2, 6)


def test_ranks_agree_and_the_next_run_remembers(ranks: RankPool, tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "cut"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 2000, "features": 64, "classes": 4},
            "model": {"kind": "gcnii", "layers": 8, "hidden": 16},
            "parallelism": {"stages": 2, "chunks": 4},
        },
    }
    first = ranks.run(agreed_cuts, 2, content, str(tmp_path))
    assert first[0] == first[1]
    assert sum(first[0]) == 8
    (tmp_path / "checkpoints" / "cut.json").write_text(
        '{"stages": 2, "ways": 1, "chunks": 4, "layers": 8, "layersPerStage": [7, 1]}'
    )
    assert ranks.run(agreed_cuts, 2, content, str(tmp_path)) == [(7, 1), (7, 1)]
    (tmp_path / "checkpoints" / "cut.json").write_text("{ half a file")
    again = ranks.run(agreed_cuts, 2, content, str(tmp_path))
    assert again[0] == again[1]
    assert sum(again[0]) == 8
