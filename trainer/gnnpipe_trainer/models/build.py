"""From the manifest's spec.model to a Model: a built-in one, or a person's own through "module:factory"."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gnnpipe_trainer.models.block import BadModel, Model
from gnnpipe_trainer.models.gcn import gcn
from gnnpipe_trainer.models.gcnii import gcnii

BUILT_IN: dict[str, Callable[..., Model]] = {"gcn": gcn, "gcnii": gcnii}


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
    """The whole model, initialised block after block from torch's current seed; raises BadModel."""
    if model_spec.kind not in BUILT_IN:
        raise BadModel(f"spec.model.kind: {model_spec.kind!r} is not known; use one of {sorted(BUILT_IN)}")
    factory = BUILT_IN[model_spec.kind]
    sizes = {
        "features": features,
        "classes": classes,
        "hidden": model_spec.hidden,
        "layers": model_spec.layers,
        "dropout": model_spec.dropout,
    }
    _check_options(model_spec, factory, sizes)
    return factory(**sizes, **model_spec.options)


def _check_options(
    model_spec: ModelSpec, factory: Callable[..., object], sizes: Mapping[str, object]
) -> None:
    parameters = inspect.signature(factory).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters if p.name not in sizes]
    for name in model_spec.options:
        if name not in known:
            has = ", ".join(known) or "none"
            raise BadModel(f"spec.model.options.{name}: {model_spec.kind} has no such option; it has {has}")
