"""Every bad manifest of the api's table, at a real API server: refused there, or Failed by the operator."""

from __future__ import annotations

import copy
import importlib.util
import json
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from harness.controlplane import ControlPlane
from harness.kubectl import KubectlError

from gnnpipe_api.load import InvalidJob, parse_job

VALID = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "spec": {"graph": {"source": "synthetic"}, "model": {"kind": "gcnii", "layers": 8}},
}


def table() -> list[dict[str, Any]]:
    """The changes of tests/api's table: one table of mistakes for the whole project."""
    path = Path(__file__).parents[1] / "api" / "test_bad_manifests.py"
    spec = importlib.util.spec_from_file_location("bad_manifests_table", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [changes for changes, _ in module.BAD]


def changed(changes: dict[str, Any], name: str) -> dict[str, Any]:
    manifest = {**copy.deepcopy(VALID), "metadata": {"name": name}}
    for path, value in changes.items():
        *sections, last = path.split(".")
        here: Any = manifest
        for section in sections:
            here = here.setdefault(section, {})
        if value is ...:
            del here[last]
        else:
            here[last] = value
    return manifest


def is_bad_as_json(changes: dict[str, Any]) -> bool:
    """A date or a number as a key is a mistake in YAML only: kubectl turns both into text on the way."""
    try:
        parse_job(json.loads(json.dumps(changed(changes, "job"), default=str)))
    except InvalidJob:
        return True
    return False


def test_each_bad_manifest_is_refused_or_failed_within_two_seconds_and_creates_nothing(
    play: Any, operator: Any, control_plane: ControlPlane, tmp_path: Path
) -> None:
    changes = [change for change in table() if is_bad_as_json(change)]
    assert len(changes) >= 40
    for number, change in enumerate(changes):
        text = yaml.safe_dump(changed(change, f"bad-{number}"))
        (tmp_path / f"bad-{number}.yaml").write_text(text)
    with pytest.raises(KubectlError) as refused:
        control_plane.kubectl.inside(play.namespace)("apply", "-f", str(tmp_path))
    accepted = play.jobs()
    assert accepted, "nothing came as far as the operator: the table no longer tests it"

    play.until(
        "each is judged",
        lambda: {j.get("status", {}).get("phase") for j in play.jobs().values()} == {"Failed"},
    )
    for name, job in play.jobs().items():
        status = job["status"]
        reasons = {c["reason"] for c in status["conditions"] if c["type"] == "Failed"}
        assert reasons == {"InvalidSpec"}, name
        waited = moment(status["completionTime"]) - moment(job["metadata"]["creationTimestamp"])
        assert waited.total_seconds() <= 2, f"{name} was judged after {waited}"
        assert play.events(name) == [("Warning", "InvalidSpec")]
    assert (play.pods(), play.services()) == ([], [])
    told = str(refused.value)
    silent = [n for n in range(len(changes)) if f"bad-{n}" not in accepted and f"bad-{n}" not in told]
    assert not [n for n in silent if "metadata.name" not in changes[n]], (
        f"neither refused nor failed: {silent}"
    )


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
