"""What the models that follow torch-geometric's basic ones share."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from gnnpipe_trainer.models.dropout import dropout
from gnnpipe_trainer.models.linear import Linear

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
        return self._dropped(h.relu_())  # h is nobody else's: no copy is needed

    def of(self, linear: Linear, x: Tensor) -> Tensor:
        """All that follows x: the product, and what comes after it, ReLU in the same pass where it comes next."""
        if self.last or self.norm is not None:
            return self.forward(linear(x))
        return self._dropped(linear.relu(x))

    def _dropped(self, h: Tensor) -> Tensor:
        return dropout(h, self.dropout, self.training)


def conv_widths(features: int, hidden: int, classes: int, layers: int) -> list[tuple[int, int]]:
    """(columns in, columns out) of each convolution; all that flows between them is `hidden` wide."""
    inputs = [features, *[hidden] * (layers - 1)]
    outputs = [*[hidden] * (layers - 1), classes]
    return list(zip(inputs, outputs, strict=True))
