"""A person's own model: "module:factory" is imported, called, and tried on a tiny graph before training.

factory(features, classes, hidden, layers, dropout, **options) returns a Model, or a list of blocks that lead
from the features to the logits.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gnnpipe_trainer.models.block import BadModel, Block, FirstTensor, Model, RawFeatures
from gnnpipe_trainer.models.trial import said, try_model


def build_custom_model(
    kind: str, sizes: Mapping[str, Any], options: Mapping[str, Any], code_folder: Path | None
) -> Model:
    """The model that `kind`, as module:factory, returns; raises BadModel for all that is wrong with it."""
    factory = _import_factory(kind, code_folder)
    try:
        made = factory(**sizes, **options)
    except BadModel:
        raise
    except Exception as error:  # whatever a person's code raises is theirs to read
        raise BadModel(f"spec.model.kind: {kind} failed with {said(error)}") from error
    if isinstance(made, (list, tuple)) and made and all(isinstance(part, Block) for part in made):
        made = Model(RawFeatures(), made, FirstTensor())
    if not isinstance(made, Model):
        raise BadModel(
            f"spec.model.kind: {kind} returned {_describe(made)}; it must return a Model or a list of Blocks "
            "(from gnnpipe_trainer.models)"
        )
    try_model(made, kind, **{name: sizes[name] for name in ("features", "classes", "hidden", "layers")})
    return made


def _import_factory(kind: str, code_folder: Path | None) -> Callable[..., object]:
    module_name, _, factory_name = kind.partition(":")
    if code_folder is not None:
        _look_first_in(code_folder.resolve(), module_name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise BadModel(f"spec.model.kind: importing {module_name} failed with {said(error)}") from error
        where = f"in {code_folder} or among the installed packages" if code_folder else "on the Python path"
        raise BadModel(
            f"spec.model.kind: there is no module {module_name!r} {where}; "
            "put the file beside the manifest, or into the ConfigMap that spec.model.code names"
        ) from error
    except Exception as error:  # a mistake in the person's module
        raise BadModel(f"spec.model.kind: importing {module_name} failed with {said(error)}") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        found = "has no" if factory is None else "has something that cannot be called as"
        raise BadModel(f"spec.model.kind: module {module_name!r} {found} {factory_name!r}")
    return factory  # type: ignore[no-any-return]


def _look_first_in(folder: Path, module_name: str) -> None:
    """Put the folder on the Python path, for good: the module may import its neighbours later."""
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()
    loaded = sys.modules.get(module_name)
    own_file = folder.joinpath(*module_name.split(".")).with_suffix(".py")
    if loaded is not None and own_file.is_file() and getattr(loaded, "__file__", None) != str(own_file):
        del sys.modules[module_name]  # another folder's module of the same name


def _describe(made: object) -> str:
    if isinstance(made, (list, tuple)):
        kinds = sorted({type(part).__name__ for part in made})
        return f"a {type(made).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"a {type(made).__name__}"
