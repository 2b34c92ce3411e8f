"""From the manifest's spec.model to a Model: a built-in one, or a person's own through "module:factory"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import ConfigDict, ValidationError, validate_call

from gnnpipe_trainer.models.block import BadModel, Model
from gnnpipe_trainer.models.custom import build_custom_model
from gnnpipe_trainer.models.gat import gat
from gnnpipe_trainer.models.gcn import gcn
from gnnpipe_trainer.models.gcnii import gcnii
from gnnpipe_trainer.models.gin import gin
from gnnpipe_trainer.models.resgcn import resgcn
from gnnpipe_trainer.models.sage import sage

BUILT_IN: dict[str, Callable[..., Model]] = {
    "gcn": gcn,
    "sage": sage,
    "gin": gin,
    "gat": gat,
    "gcnii": gcnii,
    "resgcn": resgcn,
}


class ModelSpec(Protocol):
    """What is read of the manifest's spec.model."""

    @property
    def kind(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


def build_model(model_spec: ModelSpec, features: int, classes: int, code_folder: Path | None = None) -> Model:
    """The whole model, initialised block after block from torch's current seed.

    However it is cut into stages, every rank builds all of it and keeps its part, so the cut changes nothing.
    code_folder is where "module:factory" is looked for first. Raises BadModel.
    """
    sizes = {
        "features": features,
        "classes": classes,
        "hidden": model_spec.hidden,
        "layers": model_spec.layers,
        "dropout": model_spec.dropout,
    }
    for name in model_spec.options:
        if name in sizes:
            raise BadModel(f"spec.model.options.{name}: is no option; it is set elsewhere in the manifest")
    if ":" in model_spec.kind:
        return build_custom_model(model_spec.kind, sizes, model_spec.options, code_folder)
    if model_spec.kind not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise BadModel(f"spec.model.kind: {model_spec.kind!r} is not known; use {known} or module:factory")
    return _build_built_in(model_spec.kind, sizes, model_spec.options)


def _build_built_in(kind: str, sizes: Mapping[str, Any], options: Mapping[str, Any]) -> Model:
    factory = validate_call(config=ConfigDict(strict=True))(BUILT_IN[kind])
    try:
        return factory(**sizes, **options)
    except ValidationError as error:
        mistake = error.errors()[0]
        name = ".".join(str(part) for part in mistake["loc"])
        path = f"spec.model.{name}" if name in sizes else f"spec.model.options.{name}"
        if mistake["type"] == "unexpected_keyword_argument":
            raise BadModel(f"{path}: {kind} has no such option") from error
        said = mistake["msg"][0].lower() + mistake["msg"][1:]
        raise BadModel(f"{path}: {said}, not {mistake['input']!r}") from error
