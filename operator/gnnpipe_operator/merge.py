"""Strategic merge of spec.worker.template into a pod: lists of named things merge by their key, as in kubectl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The patchMergeKey of each list in Kubernetes' own pod types. Lists that are not here are replaced as a whole.
MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` over it. A null deletes a field; `$patch: replace | delete` works as in kubectl."""
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list) and key in MERGE_KEYS:
            merged[key] = _merge_list(merged[key], value, MERGE_KEYS[key])
        else:
            merged[key] = value
    return merged


def _merge_list(base: list[Any], patch: list[Any], by: str) -> list[Any]:
    """Entries with a known key are merged in place; new ones follow in their own order."""
    if any(not isinstance(entry, Mapping) or by not in entry for entry in patch):
        return patch  # nothing to match by: the API server will say what is wrong with it
    patches = {entry[by]: entry for entry in patch}
    merged = []
    for entry in base:
        change = patches.pop(entry.get(by), None)
        if change is None:
            merged.append(entry)
        elif change.get("$patch") != "delete":
            merged.append(merge(entry, change))
    return merged + [entry for entry in patches.values() if entry.get("$patch") != "delete"]
