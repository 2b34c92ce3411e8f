"""benchmarks/averaging.py: each of its courses is the run that a manifest with that setting would have been."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from accuracy_run import alone, train_cell
from averaging import BETTER, LAST, Course, Kept, table, train


def manifest(averaging: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "gnnpipe.io/v1alpha1",
        "kind": "GNNPipeJob",
        "metadata": {"name": "averaging"},
        "spec": {
            "graph": {"source": "synthetic", "vertices": 200, "averageDegree": 6, "classes": 4},
            "model": {"kind": "gcn", "layers": 3, "hidden": 8, "dropout": 0.3},
            "training": {
                "epochs": 40,
                "evaluateEvery": 2,
                "earlyStopping": {"patience": 8},
                "learningRate": 0.05,
                "learningRateSchedule": {"mode": "step", "every": 5, "warmupEpochs": 2},
                "averaging": averaging,
            },
            "parallelism": {"stages": 2, "chunks": 4},
        },
    }


def test_one_training_gives_what_each_setting_alone_would_give(tmp_path: Path) -> None:
    with alone():
        found = dict(train(manifest({"mode": "none"})))
    settings: dict[str, dict[str, Any]] = {
        LAST: {"mode": "none"},
        "ema 0.9": {"mode": "ema", "decay": 0.9},
        BETTER: {"mode": "tail"},
    }
    for rule, averaging in settings.items():
        with alone():
            run = train_cell(manifest(averaging), tmp_path)
        for name in ("bestEpoch", "val", "test", "validation"):
            assert found[rule][name] == run[name], (rule, name)
    courses = [found[rule]["validation"] for rule in (*settings, "tail 1/4", "tail 1/16")]
    assert all(courses.count(course) == 1 for course in courses)


def test_a_course_ends_when_nothing_better_has_come_for_so_long() -> None:
    course = Course(patience=4, every=2)
    for epoch, validation in ((1, 0.5), (3, 0.6), (5, 0.6), (7, 0.1)):
        assert not course.ended
        course.offer(epoch, validation, test=validation / 2)
    assert course.ended
    assert course.line() == {
        "every": 2,
        "bestEpoch": 4,
        "val": 0.6,
        "test": 0.3,
        "validation": [0.5, 0.6, 0.6, 0.1],
    }


def test_rows_are_of_the_seeds_that_exact_training_has_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "averaging.jsonl")
    for mode, seed, test in (("exact", 1, 0.5), ("pipeline", 1, 0.52), ("pipeline", 2, 0.9)):
        line = {"every": 2, "bestEpoch": 4, "val": 0.6, "test": test, "validation": [0.1, 0.6]}
        kept.lines[f"squirrel/gcn-8/{mode}/{seed}", LAST] = line
    ((_, _, exact_seeds, *_), row) = table(kept, "squirrel", "gcn-8", ["pipeline"])
    assert (exact_seeds, row[2], row[-1]) == ("1", "1", "0")
    assert row[3].startswith("+2.0")
    assert row[-2].startswith("1.00")
