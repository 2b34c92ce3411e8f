"""Rules about `spec.worker.template`: a person may add to the pods, but not undo what makes them one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gnnpipe_api.contract import GROUP, RESERVED_ENV_PREFIX, TRAINER_CONTAINER
from gnnpipe_api.job import JobSpec
from gnnpipe_api.problems import Problem, shown
from gnnpipe_api.rule import Rule, rule
from gnnpipe_api.rules_graph import reserved_mount

_TEMPLATE = "spec.worker.template"
_OWNED_METADATA = ("name", "generateName", "namespace", "ownerReferences")
_OWNED_POD_FIELDS = ("restartPolicy", "hostname", "subdomain")
_OWNED_CONTAINER_FIELDS = ("command", "args")


@rule(_TEMPLATE)
def a_template_is_a_pod_template(spec: JobSpec) -> Iterator[Problem]:
    for name, section in spec.worker.template.items():
        if name not in ("metadata", "spec"):
            yield Problem(f"{_TEMPLATE}.{name}", "unknown field; a pod template has metadata and spec.")
        elif not isinstance(section, dict):
            yield Problem(f"{_TEMPLATE}.{name}", f"must be an object with fields, got {shown(section)}.")


@rule(_TEMPLATE)
def a_template_leaves_the_operators_fields_alone(spec: JobSpec) -> Iterator[Problem]:
    metadata = _object(spec.worker.template.get("metadata"))
    pod = _object(spec.worker.template.get("spec"))
    for path, section, owned in (
        (f"{_TEMPLATE}.metadata", metadata, _OWNED_METADATA),
        (f"{_TEMPLATE}.spec", pod, _OWNED_POD_FIELDS),
    ):
        for field in owned:
            if field in section:
                yield Problem(f"{path}.{field}", "leave it out: the operator sets it.")
    for kind in ("labels", "annotations"):
        for name in _object(metadata.get(kind)):
            if str(name).startswith(f"{GROUP}/"):
                yield Problem(f"{_TEMPLATE}.metadata.{kind}.{name}", f"names under {GROUP}/ are reserved.")


@rule(_TEMPLATE)
def a_template_keeps_the_trainer_as_it_is(spec: JobSpec) -> Iterator[Problem]:
    pod = _object(spec.worker.template.get("spec"))
    for kind in ("containers", "initContainers"):
        containers = pod.get(kind, [])
        if not isinstance(containers, list):
            yield Problem(f"{_TEMPLATE}.spec.{kind}", f"must be a list, got {shown(containers)}.")
            continue
        for position, container in enumerate(containers):
            yield from _container_problems(f"{_TEMPLATE}.spec.{kind}[{position}]", container)


def _container_problems(path: str, container: Any) -> Iterator[Problem]:
    if not isinstance(container, dict) or not isinstance(container.get("name"), str):
        yield Problem(path, f"a container needs a name; the one that trains is called {TRAINER_CONTAINER}.")
        return
    if container["name"] == TRAINER_CONTAINER:
        for field in _OWNED_CONTAINER_FIELDS:
            if field in container:
                yield Problem(
                    f"{path}.{field}",
                    f"leave it out: the operator sets it for container {TRAINER_CONTAINER}.",
                )
    for position, entry in enumerate(_list(container.get("env"))):
        name = str(_object(entry).get("name", ""))
        if name.startswith(RESERVED_ENV_PREFIX):
            yield Problem(
                f"{path}.env[{position}]", f"{name} is reserved; names may not begin with GNNPIPE_."
            )
    for position, entry in enumerate(_list(container.get("volumeMounts"))):
        mount_path = str(_object(entry).get("mountPath", ""))
        reserved = reserved_mount(mount_path) if mount_path else None
        if reserved is not None:
            yield Problem(
                f"{path}.volumeMounts[{position}].mountPath",
                f"{mount_path} collides with {reserved}, which GNNPipe mounts.",
            )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


TEMPLATE_RULES: tuple[Rule, ...] = (
    a_template_is_a_pod_template,
    a_template_leaves_the_operators_fields_alone,
    a_template_keeps_the_trainer_as_it_is,
)
