"""Dropout that draws its random numbers several at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LEVELS = 1 << 16  # of 16 random bits: the probability is rounded to multiples of 1 / LEVELS
PER_DRAW = 4  # of them in one draw of 64 bits


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with each element zeroed with this probability and the others scaled up, so that the mean stays.

    On CPU, torch's own draws one number at a time, which took almost half of an epoch of a deep model on wide
    features. Both draw from torch's default generator.
    """
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    return x * _scaled_mask(x, kept_levels=round((1 - probability) * LEVELS))


def kept_scale(x: Tensor, probability: float) -> float:
    """What `dropout` multiplies the elements of x by that it keeps."""
    kept = round((1 - probability) * LEVELS) / LEVELS if x.device.type == "cpu" else 1 - probability
    return 1 / kept if kept else 1.0


def _scaled_mask(x: Tensor, kept_levels: int) -> Tensor:
    """Zeros, and in the kept places the inverse of the rounded probability to be kept: exactly unbiased."""
    if kept_levels in (0, LEVELS):
        return torch.full_like(x, kept_levels // LEVELS, requires_grad=False)
    draws = torch.empty(-(-x.numel() // PER_DRAW), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    mask = torch.empty(x.shape, dtype=x.dtype)
    torch.lt(bits, kept_levels - LEVELS // 2, out=mask)
    return mask.mul_(LEVELS / kept_levels)
