"""The CRD: structural as the API server wants it, and meaning the same as the models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnnpipe_api.crd import crd
from gnnpipe_api.load import load_job, parse_job, parse_yaml

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
Schema = dict[str, Any]


def version(cel: bool = False) -> dict[str, Any]:
    versions: list[dict[str, Any]] = crd(cel=cel)["spec"]["versions"]
    return versions[0]


def root_schema(cel: bool = False) -> Schema:
    schema: Schema = version(cel)["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for inside in ("items", "additionalProperties"):
        if inside in schema:
            yield from nodes(schema[inside], f"{path}.*")


def test_every_node_is_structural() -> None:
    for path, node in nodes(root_schema()):
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node, path
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}, path
            assert "anyOf" not in node, path
        assert not {"$ref", "$defs", "title", "const", "oneOf", "allOf"} & node.keys(), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path
        assert isinstance(node.get("exclusiveMaximum", True), bool), path


def test_every_field_of_the_spec_and_the_status_is_explained() -> None:
    ours = [(path, node) for path, node in nodes(root_schema()) if path.startswith((".spec", ".status"))]
    assert [path for path, node in ours if not path.endswith("*") and not node.get("description")] == []


def test_objects_of_others_keep_fields_we_do_not_know() -> None:
    spec = root_schema()["properties"]["spec"]
    free = {path for path, node in nodes(spec) if node.get("x-kubernetes-preserve-unknown-fields")}
    assert free == {
        ".graph.volume",
        ".model.options",
        ".checkpoint.volume",
        ".worker.template",
    }


def test_a_number_or_auto_is_int_or_string() -> None:
    parallelism = root_schema()["properties"]["spec"]["properties"]["parallelism"]["properties"]
    for field in ("stages", "ways", "chunks"):
        assert parallelism[field]["x-kubernetes-int-or-string"] is True
        assert (parallelism[field]["minimum"], parallelism[field]["pattern"]) == (1, "^auto$")


def test_columns_and_names_tell_the_story() -> None:
    columns = [column["name"] for column in version()["additionalPrinterColumns"]]
    assert columns == ["Phase", "Stages", "Epoch", "Loss", "Test", "Restarts", "Age"]
    assert version()["subresources"] == {"status": {}}
    assert crd()["spec"]["names"]["shortNames"] == ["gpj"]


def test_every_column_shows_a_field_that_exists() -> None:
    paths = {path for path, _ in nodes(root_schema())} | {".metadata.creationTimestamp"}
    for column in version()["additionalPrinterColumns"]:
        assert column["jsonPath"] in paths


def test_cel_rules_are_there_only_when_asked_for() -> None:
    assert "x-kubernetes-validations" not in root_schema()["properties"]["spec"]
    rules = root_schema(cel=True)["properties"]["spec"]["x-kubernetes-validations"]
    assert any("self.parallelism.stages" in rule["rule"] for rule in rules)
    assert all(rule["message"].endswith(".") for rule in rules)


def as_stored(value: Any, schema: Schema) -> Any:
    """What the API server makes of an object: defaults filled in from the outside inwards."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    stored = dict(value)
    for name, below in schema["properties"].items():
        if name not in stored and "default" in below:
            stored[name] = copy.deepcopy(below["default"])
        if name in stored:
            stored[name] = as_stored(stored[name], below)
    return stored


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_job_stored_with_the_servers_defaults_is_the_same_job(example: Path) -> None:
    stored = as_stored(parse_yaml(example.read_text()), root_schema())
    assert stored["spec"]["parallelism"]["history"]["mode"] == "ema"
    assert parse_job(stored) == load_job(example)
