"""Losses and scores are those of the whole graph, however its vertices are cut into chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnpipe_trainer.models.loss import loss_and_gradient, loss_sum, score, score_counts

VERTICES, CLASSES = 30, 4


def multi_class() -> Tensor:
    return torch.randint(0, CLASSES, (VERTICES,))


def multi_label() -> Tensor:
    return torch.randint(0, 2, (VERTICES, CLASSES))


def test_multi_class_loss_is_the_mean_cross_entropy_once_divided() -> None:
    logits, labels, mask = torch.randn(VERTICES, CLASSES), multi_class(), torch.rand(VERTICES) < 0.5
    expected = F.cross_entropy(logits[mask], labels[mask])
    torch.testing.assert_close(loss_sum(logits, labels, mask) / mask.sum(), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_multi_label_loss_is_the_mean_binary_cross_entropy_once_divided(dtype: torch.dtype) -> None:
    logits, labels, mask = torch.randn(VERTICES, CLASSES), multi_label().to(dtype), torch.rand(VERTICES) < 0.5
    expected = F.binary_cross_entropy_with_logits(logits[mask], labels[mask].to(logits.dtype))
    torch.testing.assert_close(loss_sum(logits, labels, mask) / mask.sum(), expected)


@pytest.mark.parametrize("labels_of", [multi_class, multi_label])
def test_losses_and_counts_of_chunks_add_up_to_those_of_the_graph(labels_of: object) -> None:
    assert callable(labels_of)
    logits, labels, mask = torch.randn(VERTICES, CLASSES), labels_of(), torch.rand(VERTICES) < 0.5
    mask[:7] = False  # a chunk without any vertex to count
    cuts = [7, 3, 12, 8]
    chunks = list(zip(logits.split(cuts), labels.split(cuts), mask.split(cuts), strict=True))
    torch.testing.assert_close(sum(loss_sum(*chunk) for chunk in chunks), loss_sum(logits, labels, mask))
    counts = torch.stack([score_counts(*chunk) for chunk in chunks]).sum(0)
    assert torch.equal(counts, score_counts(logits, labels, mask))


def test_rows_can_be_named_by_number() -> None:
    logits, labels, mask = torch.randn(VERTICES, CLASSES), multi_class(), torch.rand(VERTICES) < 0.5
    rows = mask.nonzero().flatten()
    assert torch.equal(loss_sum(logits, labels, mask), loss_sum(logits, labels, rows))
    assert torch.equal(score_counts(logits, labels, mask), score_counts(logits, labels, rows))


def test_accuracy_is_the_share_of_masked_vertices_with_the_right_class() -> None:
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0], [0.0, 5.0]])
    labels = torch.tensor([0, 1, 1, 0])
    counts = score_counts(logits, labels, torch.tensor([True, True, True, False]))
    assert counts.tolist() == [2, 3]
    assert score(counts) == pytest.approx(2 / 3)


def test_micro_f1_counts_labels_over_all_classes() -> None:
    logits = torch.tensor([[1.0, 1.0, -1.0], [-1.0, 1.0, -1.0], [1.0, 1.0, 1.0]])
    labels = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 0]])
    counts = score_counts(logits, labels, torch.tensor([True, True, False]))
    assert counts.tolist() == [2, 1, 1]
    assert score(counts) == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))


def test_nothing_to_count_scores_zero() -> None:
    none = torch.zeros(VERTICES, dtype=torch.bool)
    for labels in (multi_class(), multi_label()):
        assert score(score_counts(torch.randn(VERTICES, CLASSES), labels, none)) == 0.0
        assert loss_sum(torch.randn(VERTICES, CLASSES), labels, none).item() == 0.0


@pytest.mark.parametrize("several", [False, True])
def test_the_gradient_without_autograd_is_autograds(several: bool) -> None:
    torch.manual_seed(0)
    logits = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    labels = (torch.rand(50, 7) > 0.5).long() if several else torch.randint(0, 7, (50,))
    wanted = loss_sum(logits, labels)
    wanted.backward()
    loss, gradient = loss_and_gradient(logits.detach(), labels)
    torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(gradient, logits.grad)
