"""Losses and scores that add up over chunks and ranks.

Multi-class labels are [n] class numbers; multi-label ones are [n, C] zeros and ones. `mask` picks the rows
that count: [n] booleans or row numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def loss_sum(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """The loss summed over masked rows, or over all; the caller divides by the number of training vertices.

    Multi-class: cross entropy. Multi-label: binary cross entropy, averaged over the classes of a row.
    """
    if mask is not None:
        logits, labels = logits[mask], labels[mask]
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="sum")
    per_class = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return per_class / labels.size(1)


@torch.no_grad()
def loss_and_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`loss_sum` over all rows, and its gradient, without autograd."""
    if labels.dim() == 1:
        log_shares = F.log_softmax(logits, dim=1)
        loss = F.nll_loss(log_shares, labels, reduction="sum")
        return loss, log_shares.exp_().scatter_(1, labels.unsqueeze(1), -1.0, reduce="add")
    return loss_sum(logits, labels), logits.sigmoid().sub_(labels).div_(labels.size(1))


@torch.no_grad()
def score_counts(logits: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """int64 counts that add up over chunks and ranks.

    Multi-class: [correct, rows]. Multi-label: [true positives, false positives, false negatives].
    """
    logits, labels = logits[mask], labels[mask]
    if labels.dim() == 1:
        correct = (logits.argmax(dim=1) == labels).sum()
        return torch.stack([correct, torch.full_like(correct, labels.size(0))])
    predicted, actual = logits > 0, labels > 0
    return torch.stack([(predicted & actual).sum(), (predicted & ~actual).sum(), (~predicted & actual).sum()])


def score(counts: Tensor) -> float:
    """Accuracy (multi-class) or micro-F1 (multi-label) of summed counts; 0 if there was nothing to count."""
    if counts.numel() == 2:
        hits, total = counts.tolist()
    else:
        true_positive, false_positive, false_negative = counts.tolist()
        hits, total = 2 * true_positive, 2 * true_positive + false_positive + false_negative
    return hits / total if total else 0.0
