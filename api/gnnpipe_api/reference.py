"""docs/manifest.md, made from the models: every field with its type, its default and its sentence."""

from __future__ import annotations

from typing import Any

from gnnpipe_api.crd import Schema, structural_schema
from gnnpipe_api.job import GNNPipeJob

_INTRODUCTION = """\
# The manifest

<!-- Made by `gnnpipe docs` from api/gnnpipe_api: change the docstrings there, not this page. -->

Every field of a GNNPipeJob. The same manifest runs on a laptop with `gnnpipe run job.yaml` and on a cluster
with `kubectl apply -f job.yaml`; `gnnpipe validate job.yaml` checks it, and on a cluster
`kubectl explain gnnpipejob.spec` shows this page. Fields marked **required** have no default; all others may be
left out.

A small one:

```yaml
apiVersion: gnnpipe.io/v1alpha1
kind: GNNPipeJob
metadata: {name: quickstart}
spec:
  graph: {source: synthetic}
  model: {kind: gcnii, layers: 16}
  parallelism: {stages: 2}
```
"""


def manifest_reference() -> str:
    """The whole page as Markdown."""
    schema = structural_schema(GNNPipeJob)["properties"]
    sections = [_INTRODUCTION, *_section("metadata", schema["metadata"]), *_section("spec", schema["spec"])]
    return "\n".join(sections)


def _section(path: str, schema: Schema) -> list[str]:
    """A table of the fields of one object, then the sections of the objects inside it."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    below: list[str] = []
    for name, about in schema["properties"].items():
        required = name in schema.get("required", ())
        meaning = about.get("description", "").replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(path, name, about)} | {_default(about, required)} | {meaning} |")
        if "properties" in about:
            below += _section(f"{path}.{name}", about)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        rows.append(
            "| *any* | object | | One volume source of Kubernetes, such as `persistentVolumeClaim`. |"
        )
    return [f"## {path}", "", schema["description"], "", *rows, "", *below]


def _type(path: str, name: str, about: Schema) -> str:
    if "properties" in about:
        return f"[object](#{path}{name})".replace(".", "").lower()
    if "enum" in about:
        return ", ".join(f"`{choice}`" for choice in about["enum"])
    if about.get("pattern") == "^auto$":
        return "whole number or `auto`"
    if "x-kubernetes-int-or-string" in about:
        return "quantity"
    return _TYPES[about["type"]] + _range(about)


_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "object",
}


def _range(about: Schema) -> str:
    limits = []
    if "minimum" in about:
        limits.append(f"{'>' if about.get('exclusiveMinimum') else '≥'} {about['minimum']}")
    if "maximum" in about:
        limits.append(f"{'<' if about.get('exclusiveMaximum') else '≤'} {about['maximum']}")
    return f" {', '.join(limits)}" if limits else ""


def _default(about: Schema, required: bool) -> str:
    if required:
        return "**required**"
    default: Any = about.get("default")
    if default is None or default == {}:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
