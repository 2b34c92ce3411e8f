"""What is wrong with a manifest: one sentence per mistake, each with the path of its field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One mistake. The path is empty where the whole file is meant."""

    path: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence}" if self.path else self.sentence


class InvalidJob(ValueError):
    """The manifest cannot run as it is. Trying again cannot help."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def path_of(location: Location) -> str:
    """('spec', 'model', 'layers') -> 'spec.model.layers'; list positions become [0]."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def problem_of(error: ErrorDetails, root: type[BaseModel]) -> Problem:
    """A pydantic error in plain words."""
    location = error["loc"]
    path = path_of(location)
    if error["type"] == "extra_forbidden":
        return unknown_field(location, root)
    if error["type"] == "invalid_key" or location[-1:] == (
        "[key]",
    ):  # YAML takes 1: or true: for other types
        section = location[: -2 if location[-1] == "[key]" else -1]
        return Problem(path_of(section), f"field names must be text; put {error['input']} in quotes.")
    return Problem(path, _sentence(error))


def unknown_field(location: Location, root: type[BaseModel]) -> Problem:
    """An unknown field, with the field that was probably meant."""
    name = str(location[-1])
    section = _model_at(root, location[:-1])
    siblings = [] if section is None else list(_aliases(section))
    near = get_close_matches(name, siblings, n=1)
    if not near:  # a correct name in the wrong place
        near = [path for path in field_paths(root) if path.rsplit(".", 1)[-1] == name][:1]
    if near:
        sentence = f"unknown field; did you mean {near[0]}?"
    elif siblings:
        sentence = f"unknown field; {path_of(location[:-1]) or 'a manifest'} takes {', '.join(siblings)}."
    else:
        sentence = "unknown field."
    return Problem(path_of(location), sentence)


def field_paths(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """The path of every field below a model, in the order of the manifest."""
    for alias, annotation in _aliases(model).items():
        yield prefix + alias
        below = _model_in(annotation)
        if below is not None:
            yield from field_paths(below, f"{prefix}{alias}.")


def _aliases(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _model_at(root: type[BaseModel], location: Location) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for step in location:
        model = None if model is None else _model_in(_aliases(model).get(str(step)))
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model` or `Model | None`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


_EXPECTED = {
    "missing": "required field is missing.",
    "int_type": "must be a whole number, got {given}.",
    "int_from_float": "must be a whole number, got {given}.",
    "float_type": "must be a number, got {given}.",
    "finite_number": "must be a finite number, got {given}.",
    "bool_type": "must be true or false, got {given}.",
    "string_type": "must be text, got {given}.",
    "dict_type": "must be an object with fields, got {given}.",
    "model_type": "must be an object with fields, got {given}.",
    "greater_than": "must be greater than {gt}, got {given}.",
    "greater_than_equal": "must be at least {ge}, got {given}.",
    "less_than": "must be less than {lt}, got {given}.",
    "less_than_equal": "must be at most {le}, got {given}.",
    "count_or_auto": 'must be a whole number of at least 1, or "auto"; got {given}.',
    "quantity": "must be a quantity in quotes or a whole number, such as '500m' or 2; got {given}.",
}


def _sentence(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    given = shown(error["input"])
    if error["type"] == "literal_error":
        return _not_one_of(error["input"], context)
    form = _EXPECTED.get(error["type"])
    if form is None:
        return error["msg"] if error["msg"].endswith((".", "?")) else f"{error['msg']}."
    return form.format_map({**_whole_where_whole(context), "given": given})


def _not_one_of(given: Any, context: Mapping[str, Any]) -> str:
    choices = [choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
    if len(choices) == 1:
        return f"must be {choices[0]}, got {shown(given)}."
    near = get_close_matches(str(given).lower(), choices, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else "."
    return f"must be one of {', '.join(choices)}, got {shown(given)}{suggestion}"


def _whole_where_whole(context: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as a person writes them: 1, not 1.0."""
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value
        for key, value in context.items()
    }


def shown(value: Any) -> str:
    """A value as it may stand in a sentence: YAML's words, and never a page long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
