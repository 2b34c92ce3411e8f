"""Reading manifests: from a file or from plain data to a job that can run, or to everything wrong with it."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.problems import InvalidJob, Location, Problem, path_of, problem_of, shown
from gnnpipe_api.rules import broken_rules

__all__ = ["InvalidJob", "Problem", "load_job", "parse_job", "parse_yaml"]


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> GNNPipeJob:
    """The job in a YAML (or JSON) file, after `--set` overrides such as `spec.training.epochs=5`."""
    manifest = _read(Path(path))
    return parse_job(with_overrides(manifest, overrides))


def parse_job(manifest: Any) -> GNNPipeJob:
    """The job in plain data. Raises InvalidJob with every mistake at once."""
    if not isinstance(manifest, dict):
        raise InvalidJob([Problem("", f"A manifest must be an object with fields, got {shown(manifest)}.")])
    try:
        job = _validate(manifest)
    except ValidationError as invalid:
        raise InvalidJob(_all_problems(manifest, invalid)) from None
    problems = list(broken_rules(job.spec))
    if problems:
        raise InvalidJob(problems)
    return job


def _validate(manifest: dict[str, Any]) -> GNNPipeJob:
    # A manifest speaks camelCase only, as the API server does; snake_case names are for Python callers.
    return GNNPipeJob.model_validate(manifest, by_alias=True, by_name=False)


# Stands in for required fields that are missing or wrong, so that the rules about the others can be checked.
_SMALLEST_JOB: dict[str, Any] = {
    "apiVersion": "gnnpipe.io/v1alpha1",
    "kind": "GNNPipeJob",
    "metadata": {"name": "job"},
    "spec": {"graph": {"source": "synthetic"}, "model": {"kind": "gcn", "layers": 1}},
}


def _all_problems(manifest: dict[str, Any], invalid: ValidationError) -> list[Problem]:
    errors = invalid.errors(include_url=False)
    problems = [problem_of(error, GNNPipeJob) for error in errors]
    mended = copy.deepcopy(manifest)
    for error in errors:
        _mend(mended, error["loc"])
    try:
        job = _validate(mended)
    except ValidationError:  # wrong beyond mending: the fields' own mistakes come first
        return problems
    return problems + list(broken_rules(job.spec, wrong_fields=[problem.path for problem in problems]))


def _mend(manifest: dict[str, Any], location: Location) -> None:
    """Take a wrong field out, or put a right one in its place where it is required."""
    here: Any = manifest
    stand_in: Any = _SMALLEST_JOB
    for step in location[:-1]:
        if not isinstance(here, dict) or step not in here:
            return
        here = here[step]
        stand_in = stand_in.get(step, {}) if isinstance(stand_in, dict) else {}
    last = location[-1]
    if not isinstance(here, dict):
        return
    if last in stand_in:
        here[str(last)] = copy.deepcopy(stand_in[last])
    else:
        here.pop(last, None)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidJob([Problem("", f"There is no file {path}.")]) from None
    except IsADirectoryError:
        raise InvalidJob([Problem("", f"{path} is a folder; name the manifest file in it.")]) from None
    except UnicodeDecodeError:
        raise InvalidJob([Problem("", f"{path} is not a text file in UTF-8.")]) from None
    except OSError as error:
        raise InvalidJob([Problem("", f"{path} cannot be read: {error.strerror}.")]) from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, origin: str = "manifest") -> dict[str, Any]:
    """The one object in a YAML text; `origin` names the text in messages."""
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise InvalidJob([Problem("", f"{origin}{line}: not valid YAML: {error.problem}.")]) from None
    except yaml.YAMLError as error:
        raise InvalidJob([Problem("", f"{origin}: not valid YAML: {error}.")]) from None
    if not documents:
        raise InvalidJob([Problem("", f"{origin} is empty; a GNNPipeJob manifest is expected.")])
    if len(documents) > 1:
        raise InvalidJob(
            [Problem("", f"{origin} holds {len(documents)} documents; put each job into a file of its own.")]
        )
    if not isinstance(documents[0], dict):
        given = shown(documents[0])
        raise InvalidJob([Problem("", f"{origin} must be an object with fields, got {given}.")])
    return documents[0]


class _Loader(yaml.SafeLoader):
    """YAML as the API server reads it: 1e-3 is a number, and a key given twice is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.MarkedYAMLError(None, None, f"{key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def with_overrides(manifest: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the manifest with each `path=value` set; values are YAML, paths start at the root."""
    changed = copy.deepcopy(manifest)
    problems = [problem for override in overrides if (problem := _set(changed, override)) is not None]
    if problems:
        raise InvalidJob(problems)
    return changed


def _set(manifest: dict[str, Any], override: str) -> Problem | None:
    path, equals, text = override.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        return Problem("", f"--set {override}: write it as path=value, for example spec.training.epochs=5.")
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        return Problem("", f"--set {override}: {text!r} is not a valid YAML value.")
    here = manifest
    for done, step in enumerate(steps[:-1], start=1):
        if here.get(step) is None:
            here[step] = {}
        here = here[step]
        if not isinstance(here, dict):
            return Problem(
                "", f"--set {override}: {path_of(tuple(steps[:done]))} is not an object with fields."
            )
    here[steps[-1]] = value
    return None
