"""What the planner knows of a person's own model."""

from __future__ import annotations

from typing import Any

from gnnpipe_trainer.planning.shape import BlockShape, EndShape, ModelShape


def shape_of(model: Any, features: int, classes: int) -> ModelShape:
    """Read off a built Model (a person's own): what cannot be read is estimated from its parameters."""
    blocks = []
    for index, block in enumerate(model.block_list()):
        out = sum(block.widths)
        constant = index == 0 and model.constant_first_message and block.edge_weights is not None
        blocks.append(
            BlockShape(
                block.message_width,
                tuple(block.widths),
                parameters=_count(block),
                multiplies=_multiplies(block),
                passes=2 * out,
                calls=2,
                saved=block.message_width + out,
                state=out,
                made=0 if block.sends_state else block.message_width,
                sends_state=block.sends_state,
                saved_per_edge=0 if block.edge_weights else 2 * block.message_width,
                edges=block.edge_weights or "conv",
                constant=constant,
                bypass=block.bypass,
            )
        )
    encoder = EndShape(_count(model.encoder), _multiplies(model.encoder))
    decoder = EndShape(_count(model.decoder), _multiplies(model.decoder))
    return ModelShape(features, classes, tuple(blocks), encoder, decoder)


def _count(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _multiplies(module: Any) -> int:
    """A matrix is multiplied with once per vertex; vectors are biases and norms."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() >= 2)
