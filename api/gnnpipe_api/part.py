"""What every part of the manifest has in common: strict, closed, frozen, camelCase outside."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError


class Part(BaseModel):
    """A section of the manifest. A field's docstring is what `kubectl explain` says about it."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_default(cls, given: Any) -> Any:
        """`training:` with nothing after it is null; the API server, too, takes that for "not given"."""
        if isinstance(given, dict):
            return {key: value for key, value in given.items() if value is not None}
        return given


def _count_or_auto(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise PydanticCustomError("count_or_auto", 'must be a whole number of at least 1, or "auto"')


def as_json(value: Any) -> Any:
    """The value itself, if JSON can hold it: YAML knows dates and numbers as names, the API server does not."""
    if isinstance(value, dict):
        for name, below in value.items():
            if not isinstance(name, str):
                raise PydanticCustomError(
                    "not_json", "field names must be text; put {name} in quotes.", {"name": str(name)}
                )
            as_json(below)
    elif isinstance(value, list):
        for below in value:
            as_json(below)
    elif not isinstance(value, str | int | float | None):
        raise PydanticCustomError(
            "not_json", "{value} is neither text nor a number; put it in quotes.", {"value": str(value)}
        )
    return value


INT_OR_STRING = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
CountOrAuto = Annotated[
    int | Literal["auto"],
    BeforeValidator(_count_or_auto),
    WithJsonSchema({**INT_OR_STRING, "minimum": 1, "pattern": "^auto$"}),
]
Object = Annotated[
    dict[str, Any],
    AfterValidator(as_json),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""An object whose fields belong to somebody else: Kubernetes, or the author of a model."""
