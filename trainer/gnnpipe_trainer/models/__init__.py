"""Models as lists of blocks."""

from gnnpipe_trainer.models.block import (
    BadModel,
    Block,
    ConvBlock,
    EdgeWeights,
    FirstTensor,
    Model,
    RawFeatures,
    State,
)
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.linear import Linear, WeightGradientQueue, defer_weight_gradients

__all__ = [
    "BadModel",
    "Block",
    "ConvBlock",
    "EdgeWeights",
    "FirstTensor",
    "Linear",
    "Model",
    "RawFeatures",
    "State",
    "WeightGradientQueue",
    "build_model",
    "defer_weight_gradients",
]
