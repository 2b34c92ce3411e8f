"""The bare loop: the kernels that the engine calls, in the same order, with nothing around them.

Forward and backward of GCN and SAGE written by hand, on the whole graph, without autograd, hooks, slots or
channels. What the engine takes longer than this is its own cost.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnpipe_api.load import parse_job
from gnnpipe_trainer.bench.epochs import Figures, Step, run_task, time_epochs
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.models.block import Model
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.dense import add_product, gradients, product
from gnnpipe_trainer.models.gcn import GCNBlock
from gnnpipe_trainer.models.linear import Linear
from gnnpipe_trainer.models.sage import SAGEBlock
from gnnpipe_trainer.optimizer import make_optimizer
from gnnpipe_trainer.pipeline.aggregate import RowBlock, aggregate
from gnnpipe_trainer.pipeline.shard import Matrix, Shard

KINDS = ("gcn", "sage")


class Layer:
    """One convolution by hand. `inputs` is h [V, in]; `sums` is A h, or A (h W) where that is narrower."""

    def __init__(self, block: GCNBlock | SAGEBlock, matrix: Matrix, transposed: Matrix, last: bool) -> None:
        self.neighbours = block.linear if isinstance(block, GCNBlock) else block.neighbours
        self.root = None if isinstance(block, GCNBlock) else block.root
        self.multiply_first, self.last = block.multiply_first, last
        self.matrix, self.transposed = matrix, transposed

    def forward(self, inputs: Tensor, constant_sums: Tensor | None) -> Tensor:
        self.inputs = inputs
        weight, bias = self.neighbours.weight, self.neighbours.bias
        if self.multiply_first:
            outputs = _times(self.matrix, product(inputs, weight)) + bias
        else:
            self.sums = _times(self.matrix, inputs) if constant_sums is None else constant_sums
            outputs = product(self.sums, weight, bias, relu=self.root is None and not self.last)
        if self.root is not None:
            add_product(outputs, inputs, self.root.weight, relu=not self.last)
        elif not self.last and self.multiply_first:
            outputs.relu_()
        self.outputs = outputs
        return self.outputs

    def backward(self, gradient: Tensor, first: bool) -> Tensor:
        """From the gradient of the outputs to that of the inputs; weight gradients are left on the weights."""
        linear, outputs = self.neighbours, None if self.last else self.outputs
        for parameter in (linear.weight, linear.bias, *(() if self.root is None else (self.root.weight,))):
            parameter.grad = torch.zeros_like(parameter)
        if self.multiply_first:
            gradient = (
                gradient if outputs is None else torch.ops.aten.threshold_backward(gradient, outputs, 0)
            )
            linear.bias.grad = gradient.sum(0)
            below = _layer_gradients(linear, _times(self.transposed, gradient), None, self.inputs)
        else:
            below = _layer_gradients(linear, gradient, outputs, self.sums, first, linear.bias.grad)
            below = below if first else _times(self.transposed, below)
        if self.root is None:
            return below
        own = _layer_gradients(self.root, gradient, outputs, self.inputs, first)
        return own if first else below.add_(own)


def _layer_gradients(
    linear: Linear,
    gradient: Tensor,
    outputs: Tensor | None,
    inputs: Tensor,
    first: bool = False,
    bias_gradient: Tensor | None = None,
) -> Tensor:
    """The gradient of the inputs, or anything in the first layer, where nobody wants it."""
    below = torch.empty_like(inputs)
    matrix, place = (None, None) if first else (linear.weight, below)
    gradients(gradient, outputs, inputs, matrix, place, linear.weight.grad, bias_gradient)
    return below


def layers_of(model: Model, shard: Shard) -> list[Layer]:
    blocks = model.block_list()
    layers = []
    for block in blocks:
        assert isinstance(block, GCNBlock | SAGEBlock)
        assert block.edge_weights is not None
        sides = [shard.matrix(block.edge_weights, transposed) for transposed in (False, True)]
        layers.append(Layer(block, sides[0], sides[1], last=block is blocks[-1]))
    return layers


@torch.no_grad()
def train_once(layers: list[Layer], constant_sums: Tensor, shard: Shard) -> float:
    """Loss of one full-batch pass; gradients are left on the weights."""
    h = shard.features
    for layer in layers:
        h = layer.forward(h, constant_sums if layer is layers[0] else None)
    mask = shard.masks["train"]
    labels = shard.labels[mask]
    log_shares = F.log_softmax(h[mask], dim=1)
    loss = F.nll_loss(log_shares, labels)
    rows = log_shares.exp_()
    rows[torch.arange(len(labels)), labels] -= 1
    gradient = torch.zeros_like(h)
    gradient[mask] = rows / len(labels)
    for layer in reversed(layers):
        gradient = layer.backward(gradient, first=layer is layers[0])
    return float(loss)


def measure(task: dict[str, Any]) -> Figures:
    return time_epochs(task["epochs"], make_step(task))


def make_step(task: dict[str, Any]) -> Step:
    """One epoch of the bare loop, with the optimizer's step."""
    job = parse_job(task["manifest"])
    folder = Path(task["folder"])
    graph = chunked_graph(job.spec.graph, 1, 1, folder)
    torch.manual_seed(job.spec.training.seed)
    model = build_model(job.spec.model, graph.num_features, graph.num_classes, folder)
    shard = Shard(graph, 0, torch.float32, torch.device("cpu"))
    layers = layers_of(model, shard)
    constant_sums = _times(layers[0].matrix, shard.features)
    optimizer = make_optimizer(job.spec.training, list(model.parameters()))

    def step(epoch: int) -> float:
        loss = train_once(layers, constant_sums, shard)
        optimizer.step()
        return loss

    return step


def _times(matrix: Matrix, source: Tensor) -> Tensor:
    return aggregate(RowBlock(matrix.indptr, matrix.columns, matrix.weights), source)


if __name__ == "__main__":
    sys.exit(run_task(measure))
