"""The CustomResourceDefinition, made from the pydantic models.

The API server takes "structural" schemas only: no references, no unions, every node with one type. Pydantic's
schema is rewritten into that form here; nothing about the manifest is said a second time.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gnnpipe_api.contract import GROUP, KIND, PLURAL, VERSION
from gnnpipe_api.job import GraphSpec, JobSpec, Metadata
from gnnpipe_api.rules import RULES
from gnnpipe_api.spec_graph import SYNTHETIC_FIELDS
from gnnpipe_api.status import JobStatus

Schema = dict[str, Any]

_COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Stages", "integer", ".status.plan.stages"),
    ("Epoch", "integer", ".status.epoch"),
    ("Loss", "number", ".status.loss"),
    ("Test", "number", ".status.accuracy.test"),
    ("Restarts", "integer", ".status.restarts"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def crd(cel: bool = False) -> dict[str, Any]:
    """The CRD as plain data. With `cel` it also holds the rules in CEL, which needs Kubernetes 1.25."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["gpj"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": _object_schema(cel)},
                }
            ],
        },
    }


def _object_schema(cel: bool) -> Schema:
    spec = structural_schema(JobSpec)
    for name in SYNTHETIC_FIELDS:
        # Written into every npz job, these defaults would only puzzle its reader.
        about = spec["properties"]["graph"]["properties"][GraphSpec.model_fields[name].alias]
        about["description"] += f" Default: {about.pop('default'):g}."
    if cel:
        spec["x-kubernetes-validations"] = [
            {"rule": twin.expression, "message": twin.message} for rule in RULES for twin in rule.cel
        ]
    # Of metadata, the API server lets a schema restrict the name only.
    name_schema = structural_schema(Metadata)["properties"]["name"]
    return {
        "description": "A deep graph neural network to train, its layers cut into pipeline stages.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name_schema}},
            "spec": spec,
            "status": _without_defaults(structural_schema(JobStatus)),
        },
    }


def structural_schema(model: type[BaseModel]) -> Schema:
    """A model's schema in the form that the API server takes."""
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        return _structural(node, definitions)
    if "x-kubernetes-int-or-string" not in node and "anyOf" in node:
        return _structural(_not_null(node), definitions)
    out = {key: value for key, value in node.items() if key in _KEPT}
    if "description" in out:
        out["description"] = " ".join(out["description"].split())
    if "const" in node:
        out["enum"] = [node["const"]]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in node:  # a number in JSON schema, a flag beside the limit in OpenAPI 3.0
            out[limit], out[bound] = node[bound], True
    if "items" in node:
        out["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        out["properties"] = _properties(node, definitions)
    extra = node.get("additionalProperties")
    if isinstance(extra, dict) and "properties" not in node:
        out["additionalProperties"] = _structural(extra, definitions)
    elif extra not in (None, False):  # beside properties Kubernetes takes no additionalProperties
        out["x-kubernetes-preserve-unknown-fields"] = True
    return out


_KEPT = {
    *("type", "description", "default", "enum", "format", "pattern", "required"),
    *("minimum", "maximum", "minLength", "maxLength", "anyOf"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
}


def _properties(node: Schema, definitions: dict[str, Schema]) -> Schema:
    properties: Schema = {}
    for name, about in node["properties"].items():
        schema = _structural(about, definitions)
        optional = "anyOf" in about and "x-kubernetes-int-or-string" not in about
        if "properties" in schema and not optional and name not in node.get("required", ()):
            schema["default"] = {}  # lets the API server fill in the defaults inside
        properties[name] = schema
    return properties


def _not_null(node: Schema) -> Schema:
    """`X | None` in pydantic is simply not required in Kubernetes."""
    choices = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
    if len(choices) != 1:
        raise TypeError(f"Kubernetes knows no union of {choices}; give the field one type.")
    around = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    return {**choices[0], **around}


def _without_defaults(node: Schema) -> Schema:
    """Status is what the operator wrote and nothing else."""
    out = {key: value for key, value in node.items() if key != "default"}
    for inside in ("items", "additionalProperties"):
        if inside in out:
            out[inside] = _without_defaults(out[inside])
    if "properties" in out:
        out["properties"] = {name: _without_defaults(below) for name, below in out["properties"].items()}
    return out
