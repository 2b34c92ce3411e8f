"""Products of a dense layer: our own loops for fp32 on CPUs, torch for everything else.

torch leaves products to MKL, which on processors that are not Intel's uses half of the vector unit, and hands each of a
layer's gradients to another call. The loops (kernels/dense.c) are 2.6 times as quick on such a processor.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnpipe_trainer import kernels


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    relu: bool = False,
    entry: kernels.Entry | None = None,
) -> Tensor:
    """x W^T + b, and ReLU of it in the same pass, for x [n, in], weight [out, in], bias [out]; outside autograd.

    It may push the result into history, if told how; then that is `entry.served`.
    """
    if x.dim() == 2 and kernels.fits(x, weight) and not torch.is_autocast_enabled("cpu"):
        if entry is not None:
            kernels.product_to_history(entry, x, weight.t(), bias, None, relu)
            return entry.served
        y = x.new_empty(x.shape[0], weight.shape[0])
        kernels.product(y, x, weight.t(), bias, relu)
        return y
    y = F.linear(x, weight, bias)
    return y.relu_() if relu else y


def add_product(
    y: Tensor, x: Tensor, weight: Tensor, relu: bool = False, entry: kernels.Entry | None = None
) -> Tensor:
    """y += x W^T, and ReLU of it in the same pass, for y [n, out], x [n, in], weight [out, in]; outside autograd.

    It may push the result into history, if told how; then that is `entry.served`, and y is anything.
    """
    if kernels.fits(y, x, weight):
        if entry is not None:
            kernels.product_to_history(entry, x, weight.t(), None, y, relu)
            return entry.served
        kernels.product(y, x, weight.t(), None, relu, adds=True)
        return y
    y.addmm_(x, weight.t())
    return y.relu_() if relu else y


def gradients(
    dy: Tensor,
    y: Tensor | None,
    x: Tensor,
    matrix: Tensor | None = None,
    dx: Tensor | None = None,
    dw: Tensor | None = None,
    db: Tensor | None = None,
    scale: float = 1.0,
    share: float = 1.0,
) -> None:
    """Of x matrix^T + b, or of what ReLU made of it, y: writes dx if a matrix is given, adds to dw and db if they are;
    outside autograd.

    dy, y [n, out], matrix, dw [out, in], x, dx [n, in], db [out]. y may also have gone through dropout, which scales
    what it keeps by `scale`: where it is zero, by ReLU or by dropout, nothing flows back. dw is `share` times the
    matrix's gradient. Under autocast dy has a lower precision than the others.
    """
    if kernels.fits(dy, x, *(tensor for tensor in (y, matrix, dx, dw, db) if tensor is not None)):
        kernels.gradients(dy, y, x, matrix, dx, dw, db, scale, share)
        return
    if y is not None:
        dy = torch.ops.aten.threshold_backward.default(dy, y.to(dy.dtype), 0)
        dy = dy if scale == 1 else dy.mul_(scale)
    if matrix is not None and dx is not None:
        dx.copy_(dy @ matrix.to(dy.dtype))
    if dw is not None:
        dw.add_((dy.t() @ x.to(dy.dtype)).to(dw.dtype), alpha=share)
    if db is not None:
        db.add_(dy.sum(0))
