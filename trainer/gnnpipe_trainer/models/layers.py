"""What the models that follow torch-geometric's basic ones share."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from gnnpipe_trainer.models.dropout import dropout

Norm = Literal["none", "layer"]


class Between(nn.Module):
    """Between two convolutions: LayerNorm if asked for, ReLU, dropout. After the last: nothing."""

    def __init__(self, width: int, norm: Norm, dropout: float, last: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm == "layer" and not last else None
        self.dropout = dropout
        self.last = last

    def forward(self, h: Tensor) -> Tensor:
        if self.last:
            return h
        if self.norm is not None:
            h = self.norm(h)
        return dropout(h.relu_(), self.dropout, self.training)  # h is nobody else's: no copy is needed


def conv_widths(features: int, hidden: int, classes: int, layers: int) -> list[tuple[int, int]]:
    """(columns in, columns out) of each convolution; all that flows between them is `hidden` wide."""
    inputs = [features, *[hidden] * (layers - 1)]
    outputs = [*[hidden] * (layers - 1), classes]
    return list(zip(inputs, outputs, strict=True))
