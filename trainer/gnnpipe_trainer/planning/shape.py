"""What the planner knows of a model: widths, parameters and work per block. Pure arithmetic, so it answers at once.

The built-in models are written out here a second time, as formulas; tests hold them to the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gnnpipe_api.spec_model import ModelSpec
from gnnpipe_trainer.staleness.carry import Traits

Edges = Literal["sym", "mean", "sum", "conv"]


@dataclass(frozen=True)
class BlockShape:
    """One aggregation and the work on vertices before and after it. Counts are per vertex."""

    message_width: int  # columns that neighbours read
    widths: tuple[int, ...]  # columns of the state that leaves the block
    parameters: int
    multiplies: int  # multiply-adds of the dense layers
    dropped: int = 0  # columns that dropout draws random numbers for
    passes: int = 0  # columns of element-wise results of a forward pass, all operations together
    more_back: int = (
        0  # columns of element-wise results that a backward pass has beyond those, or fewer than those
    )
    calls: float = 0.0  # element-wise operations, which cost something each however few the vertices
    saved: int = 0  # columns kept from forward to backward, besides states and messages
    by_autograd: int = 0  # more of them where a backward that is written out is not to be had
    state: int = 0  # columns that the state takes which leaves the block, besides what is saved anyway
    made: int = 0  # columns of a message that is neither the state nor saved anyway
    sends_state: bool = False  # neighbours read the state itself
    straight: int = 0  # columns that dense layers take straight from the aggregation
    saved_per_edge: int = 0  # columns that a conv keeps for every edge and every vertex itself
    edges: Edges = "sym"
    constant: bool = False  # sums raw features: computed once, never sent
    bypass: bool = False  # a vertex's own state reaches the next one beside the aggregation too

    @property
    def border_width(self) -> int:
        return sum(self.widths)


@dataclass(frozen=True)
class EndShape:
    """Encoder or decoder."""

    parameters: int = 0
    multiplies: int = 0
    dropped: int = 0
    passes: int = 0
    saved: int = 0
    state: int = 0  # as of a block


@dataclass(frozen=True)
class ModelShape:
    features: int
    classes: int
    blocks: tuple[BlockShape, ...]
    encoder: EndShape = field(default_factory=EndShape)
    decoder: EndShape = field(default_factory=EndShape)

    @property
    def traits(self) -> Traits:
        return Traits(
            layers=len(self.blocks),
            bypass=any(block.bypass for block in self.blocks),
            summed=all(block.edges != "conv" for block in self.blocks),
        )

    def parameters(self, first: int, count: int) -> int:
        """Of the stage that holds blocks first to first + count - 1."""
        inside = sum(block.parameters for block in self.blocks[first : first + count])
        begins = self.encoder.parameters if first == 0 else 0
        ends = self.decoder.parameters if first + count == len(self.blocks) else 0
        return inside + begins + ends


def built_in_shape(model: ModelSpec, features: int, classes: int) -> ModelShape:
    """The shape of a built-in model, without building it."""
    shape = _SHAPES[model.kind](model, features, classes)
    blocks = tuple(replace(block, calls=block.passes / max(block.widths)) for block in shape.blocks)
    return replace(shape, blocks=blocks)


def _basic(model: ModelSpec, features: int, classes: int) -> list[tuple[int, int, bool, bool]]:
    """(columns in, columns out, first, last) of each layer of the models that follow torch-geometric's basic ones."""
    last = model.layers - 1
    return [
        (features if i == 0 else model.hidden, classes if i == last else model.hidden, i == 0, i == last)
        for i in range(model.layers)
    ]


def _between(model: ModelSpec, width: int, last: bool, fused: bool = False) -> dict[str, Any]:
    """Norm, ReLU and dropout after a convolution: parameters, dropped, passes, saved, state.

    fused: ReLU is part of the dense product, forward and backward, if no norm comes between.
    """
    if last:  # of the logits the loss keeps training vertices only
        return {"parameters": 0, "dropped": 0, "passes": 0, "saved": 0, "state": 0}
    norm = model.options.get("norm") == "layer"
    dropped = width if model.dropout > 0 else 0
    fused = fused and not norm
    # A ReLU of its own keeps its result, whatever else becomes of it; a fused one only where dropout makes another.
    relu = dropped if fused else width
    return {
        "parameters": 2 * width if norm else 0,
        "dropped": dropped,
        "passes": width * (1 + norm - fused) + dropped,
        "saved": (width + 2) * norm + relu + dropped,
        "state": dropped if not fused else width,
    }


def _by_hand(between: dict[str, Any], width: int) -> dict[str, Any]:
    """The same where forward and backward are written out (models/by_hand.py), of gcn and sage without norm.

    Dropout is a pass forward. Backward has neither it nor ReLU as a pass: the result says all that it needs of both.
    """
    dropped = between["dropped"]
    return between | {
        "passes": dropped,
        "more_back": -dropped,
        "saved": 0,
        "by_autograd": between["saved"],
        "state": width,
    }


def _gcn(model: ModelSpec, features: int, classes: int) -> ModelShape:
    blocks = []
    for inputs, outputs, first, last in _basic(model, features, classes):
        message = outputs if outputs < inputs and not first else inputs
        between = _between(model, outputs, last, fused=True)
        if not last and model.options.get("norm") != "layer":
            between = _by_hand(between, outputs)
        between["parameters"] += inputs * outputs + outputs
        between["saved"] += 0 if first else message  # sum over neighbours
        blocks.append(
            BlockShape(
                message,
                (outputs,),
                multiplies=inputs * outputs,
                straight=inputs if message == inputs and not first else 0,
                made=0 if message == inputs else message,
                sends_state=message == inputs,
                constant=first,
                **between,
            )
        )
    return ModelShape(features, classes, tuple(blocks))


def _sage(model: ModelSpec, features: int, classes: int) -> ModelShape:
    blocks = []
    for inputs, outputs, first, last in _basic(model, features, classes):
        message = outputs if outputs < inputs and not first else inputs
        between = _between(model, outputs, last)
        between["passes"] += outputs
        if not last and model.options.get("norm") != "layer":
            between = _by_hand(between, outputs)
        between["parameters"] += 2 * inputs * outputs + outputs
        between["saved"] += 0 if first else message
        blocks.append(
            BlockShape(
                message,
                (outputs,),
                multiplies=2 * inputs * outputs,
                straight=2 * inputs if message == inputs and not first else 0,
                made=0 if message == inputs else message,
                sends_state=message == inputs,
                edges="mean",
                constant=first,
                bypass=True,
                **between,
            )
        )
    return ModelShape(features, classes, tuple(blocks))


def _gin(model: ModelSpec, features: int, classes: int) -> ModelShape:
    learns_eps = int(bool(model.options.get("train_eps")))
    blocks = []
    for inputs, outputs, first, last in _basic(model, features, classes):
        between = _between(model, outputs, last, fused=True)
        between["parameters"] += inputs * outputs + outputs * outputs + 2 * outputs + learns_eps
        between["passes"] += 2 * inputs
        between["saved"] += inputs * (1 if first else 2) + outputs  # sum over neighbours, s, relu
        blocks.append(
            BlockShape(
                inputs,
                (outputs,),
                multiplies=(inputs + outputs) * outputs,
                sends_state=True,
                edges="sum",
                constant=first,
                bypass=True,
                **between,
            )
        )
    return ModelShape(features, classes, tuple(blocks))


def _gat(model: ModelSpec, features: int, classes: int) -> ModelShape:
    heads = int(model.options.get("heads", 1))
    blocks = []
    for inputs, outputs, _, last in _basic(model, features, classes):
        concat = bool(model.options.get("concat", True)) and not last
        message = heads * (outputs // heads if concat else outputs)
        between = _between(model, outputs, last)
        between["parameters"] += inputs * message + 2 * message + outputs
        between["passes"] += 2 * message
        between["saved"] += message  # as the conv reads it
        attention = 8 + (4 + (model.dropout > 0)) * heads  # where each edge leads; its scores
        blocks.append(
            BlockShape(
                message,
                (outputs,),
                multiplies=inputs * message,
                made=message,
                saved_per_edge=message + attention,
                edges="conv",
                **between,
            )
        )
    return ModelShape(features, classes, tuple(blocks))


def _gcnii(model: ModelSpec, features: int, classes: int) -> ModelShape:
    hidden, layers = model.hidden, model.layers
    drops = model.dropout > 0
    blocks = tuple(
        BlockShape(
            hidden,
            (hidden,) if i == layers - 1 else (hidden, hidden),
            parameters=hidden * hidden,
            multiplies=hidden * hidden,
            dropped=hidden * drops,
            passes=hidden + hidden * drops,
            more_back=2 * hidden,  # of the blend with h0, whose gradient is added up over the blocks
            saved=2 * hidden + hidden * drops,
            state=hidden,
            made=hidden * drops,
            sends_state=not drops,
            bypass=True,
        )
        for i in range(layers)
    )
    encoder = EndShape(
        features * hidden + hidden, features * hidden, features * drops, hidden, features * drops, hidden
    )
    decoder = EndShape(
        hidden * classes + classes, hidden * classes, hidden * drops, classes, 2 * hidden * drops
    )
    return ModelShape(features, classes, blocks, encoder, decoder)


def _resgcn(model: ModelSpec, features: int, classes: int) -> ModelShape:
    hidden = model.hidden
    dropped = hidden if model.dropout > 0 else 0
    blocks = tuple(
        BlockShape(
            hidden,
            (hidden,),
            parameters=2 * hidden * hidden + hidden + (0 if i == 0 else 2 * hidden),
            multiplies=2 * hidden * hidden,
            dropped=0 if i == 0 else dropped,
            passes=hidden if i == 0 else 4 * hidden + dropped,
            saved=hidden if i == 0 else 2 * hidden + 2 + dropped,
            state=hidden,
            made=0 if i == 0 else dropped,
            sends_state=i == 0,
            straight=2 * hidden,
            edges="mean",
            bypass=True,
        )
        for i in range(model.layers)
    )
    encoder = EndShape(features * hidden + hidden, features * hidden, state=hidden)
    decoder = EndShape(
        2 * hidden + hidden * classes + classes,
        hidden * classes,
        dropped,
        2 * hidden + dropped,
        hidden + 2 + 2 * dropped,
    )
    return ModelShape(features, classes, blocks, encoder, decoder)


_SHAPES: Mapping[str, Callable[[ModelSpec, int, int], ModelShape]] = {
    "gcn": _gcn,
    "sage": _sage,
    "gin": _gin,
    "gat": _gat,
    "gcnii": _gcnii,
    "resgcn": _resgcn,
}
