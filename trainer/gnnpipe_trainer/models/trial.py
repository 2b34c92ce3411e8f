"""Does a model keep the blocks' promises? Found out on a graph of four vertices, before hours of training.

What is tried: the shapes that the blocks declare, the width of what crosses stage borders, and that rows do
not mix, for a model that mixes them would train to something else in every cut of the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnnpipe_trainer.models.block import BadModel, Block, ConvBlock, Model, State

VERTICES = 4
OWN = 2  # of them are tried as a chunk by themselves, the others being its halo
RING = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])


def try_model(model: Model, kind: str, features: int, classes: int, hidden: int, layers: int) -> None:
    """Raises BadModel with one sentence if the model would not train as it should."""
    blocks = model.block_list()
    if len(blocks) != layers:
        raise BadModel(
            f"spec.model.layers: is {layers}, but {kind} made {len(blocks)} blocks; "
            "make one block per layer, or change the number"
        )
    for i, block in enumerate(blocks[:-1]):
        if any(width != hidden for width in block.widths):
            raise BadModel(
                f"spec.model.kind: block {i} of {kind} returns widths {block.widths}; "
                f"what flows between blocks must be {hidden} (spec.model.hidden) wide"
            )
    mixing = next((m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
    if mixing is not None:
        raise BadModel(
            f"spec.model.kind: {kind} uses {type(mixing).__name__}, which mixes the vertices of a chunk; "
            "use LayerNorm"
        )
    with torch.no_grad(), torch.random.fork_rng():
        x = torch.randn(VERTICES, features)
        _run(model.eval(), kind, x, classes)
        _check_constant_first_message(model.train(), kind, x)
        _check_stops_at_zeros(model, kind, x)


def said(error: Exception) -> str:
    """What a person's code raised, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _run(model: Model, kind: str, features: Tensor, classes: int) -> None:
    what = f"the encoder of {kind}"
    try:
        state: State = model.encoder(features)
        alone: State = model.encoder(features[:OWN])
    except Exception as error:
        raise BadModel(f"spec.model.kind: {what} failed with {said(error)}") from error
    if not isinstance(state, tuple):
        raise BadModel(f"spec.model.kind: {what} must return a tuple of tensors [vertices, width]")
    for tensor, tensor_alone in zip(state, alone, strict=True):
        _expect_same(what, tensor, tensor_alone)
    for i, block in enumerate(model.block_list()):
        name = f"block {i} ({type(block).__name__}) of {kind}"
        try:
            state = _run_block(block, name, state)
        except BadModel:
            raise
        except Exception as error:
            raise BadModel(f"spec.model.kind: {name} failed with {said(error)}") from error
    what = f"the decoder of {kind}"
    try:
        logits = model.decoder(state)
        logits_alone = model.decoder(tuple(tensor[:OWN] for tensor in state))
    except Exception as error:
        raise BadModel(f"spec.model.kind: {what} failed with {said(error)}") from error
    _expect_shape(what, logits, classes)
    _expect_same(what, logits, logits_alone)


def _check_constant_first_message(model: Model, kind: str, features: Tensor) -> None:
    """In training mode, for there dropout acts."""
    if not model.constant_first_message:
        return
    message = model.block_list()[0].message(model.encoder(features))
    if not torch.equal(message, features):
        raise BadModel(
            f"spec.model.kind: {kind} says constant_first_message, but its first block's message is not the "
            "features themselves; set it to False"
        )


@torch.enable_grad()
def _check_stops_at_zeros(model: Model, kind: str, features: Tensor) -> None:
    """The weights must not notice that gradients at zeros of the state are left out."""
    weights = [p for p in model.parameters() if p.requires_grad]
    state: State = model.encoder(features)
    for i, block in enumerate(model.block_list()[:-1]):
        message = block.message(state)
        gathered = block.convolve(message, VERTICES, RING) if isinstance(block, ConvBlock) else message
        state = block.update(gathered, message, state)
        if not block.gradient_stops_at_zeros:
            continue
        whole = [torch.randn_like(tensor) for tensor in state]
        kept = [gradient * (tensor != 0) for gradient, tensor in zip(whole, state, strict=True)]
        for one, other in zip(*(_gradients(state, weights, g) for g in (whole, kept)), strict=True):
            if not torch.equal(one, other):
                raise BadModel(
                    f"spec.model.kind: block {i} ({type(block).__name__}) of {kind} says gradient_stops_at_zeros, but "
                    "gradients pass where its state is zero; set it to False"
                )


def _gradients(state: State, weights: list[nn.Parameter], gradients: list[Tensor]) -> list[Tensor]:
    roots = [(t, g) for t, g in zip(state, gradients, strict=True) if t.requires_grad]
    if not roots or not weights:
        return []
    found = torch.autograd.grad(
        [t for t, _ in roots], weights, [g for _, g in roots], retain_graph=True, allow_unused=True
    )
    return [gradient for gradient in found if gradient is not None]


def _run_block(block: Block, name: str, state: State) -> State:
    """The block on all four vertices, compared with the block on two of them."""
    part = tuple(tensor[:OWN] for tensor in state)
    message = block.message(state)
    _expect_shape(f"message of {name}", message, block.message_width)
    _expect_same(f"message of {name}", message, block.message(part))
    if isinstance(block, ConvBlock):
        gathered = block.convolve(message, VERTICES, RING)
        chunk = block.convolve(message, OWN, RING[:, RING[1] < OWN])
        _expect_same(f"convolve of {name}", gathered, chunk)
    elif block.edge_weights in ("sym", "mean", "sum"):
        gathered = message  # any rows of that shape will do
    else:
        raise BadModel(
            f"spec.model.kind: edge_weights of {name} is {block.edge_weights!r}; "
            "use sym, mean or sum, or make it a ConvBlock"
        )
    after = block.update(gathered, message, state)
    if not isinstance(after, tuple) or len(after) != len(block.widths):
        raise BadModel(
            f"spec.model.kind: update of {name} must return a tuple of {len(block.widths)} tensors"
        )
    alone = block.update(gathered[:OWN], message[:OWN], part)
    for tensor, tensor_alone, width in zip(after, alone, block.widths, strict=True):
        _expect_shape(f"update of {name}", tensor, width)
        _expect_same(f"update of {name}", tensor, tensor_alone)
    return after


def _expect_shape(what: str, tensor: Tensor, width: int) -> None:
    if tuple(tensor.shape) != (VERTICES, width):
        raise BadModel(
            f"spec.model.kind: {what} must be [vertices, {width}], but for {VERTICES} vertices it is "
            f"{list(tensor.shape)}"
        )


def _expect_same(what: str, whole: Tensor, chunk: Tensor) -> None:
    if chunk.shape != whole[:OWN].shape or not torch.allclose(chunk, whole[:OWN], rtol=1e-3, atol=1e-5):
        raise BadModel(
            f"spec.model.kind: {what} gives a vertex another result when other vertices come with it; "
            "a vertex may depend on itself and its in-neighbours only"
        )
