"""Dense products of tall matrices: the best kernel for each device and dtype, behind a few functions.

On CPU torch hands fp32 products to MKL, which uses half of the vector unit of processors that are not Intel's. oneDNN,
which torch brings along for its convolutions, uses all of it: on AMD's Zen 5 a core does 250 GFLOP/s instead of 96
with [n, 64] x [64, 64]. On other processors the two were not compared. Everything but fp32 on a CPU is left to torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEWEST_ROWS = 400  # below, a call of oneDNN takes longer than the product
IMAGE_ROWS = 100  # of the images that a weight gradient is cut into,
FEWEST_IMAGES = 20  # and so many make oneDNN take its vector kernel

_has_one_dnn: bool = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x W^T + b, and ReLU of it in the same pass, for x [n, in], weight [out, in], bias [out]; outside autograd."""
    if len(x) >= FEWEST_ROWS and _for_one_dnn(x, weight):
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), weight, bias, "relu" if relu else "none", [], ""
        )
        return y
    y = F.linear(x, weight, bias)
    return y.relu_() if relu else y


def product_into(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """x W^T, written to `out` [n, out]. oneDNN takes no place to write to; it and a copy are quicker than MKL."""
    if len(x) >= FEWEST_ROWS and _for_one_dnn(x, weight):
        return out.copy_(product(x, weight))
    return torch.mm(x, weight.t(), out=out)


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """dy^T x [out, in] for dy [n, out] and x [n, in]; outside autograd.

    For oneDNN it is the weight gradient of a 1 x 1 convolution over n pixels, cut into images of a few pixels each.
    """
    images = len(x) // IMAGE_ROWS
    if images < FEWEST_IMAGES or not _for_one_dnn(x, dy) or not (x.is_contiguous() and dy.is_contiguous()):
        return dy.t() @ x
    rows = images * IMAGE_ROWS
    outputs, inputs = dy.shape[1], x.shape[1]
    _, gradient, _ = torch.ops.aten.convolution_backward(
        _as_images(dy[:rows], images),
        _as_images(x[:rows], images),
        x.new_empty(outputs, inputs, 1, 1),
        None,
        [1, 1],
        [0, 0],
        [1, 1],
        False,
        [0, 0],
        1,
        [False, True, False],
    )
    whole: Tensor = gradient.view(outputs, inputs)
    return whole if rows == len(x) else whole.addmm_(dy[rows:].t(), x[rows:])


def _for_one_dnn(x: Tensor, other: Tensor) -> bool:
    fp32_on_cpu = x.dtype is other.dtype is torch.float32 and x.device.type == "cpu"
    return _has_one_dnn and fp32_on_cpu and x.dim() == 2 and not torch.is_autocast_enabled("cpu")


def _as_images(x: Tensor, images: int) -> Tensor:
    """[n, width] as [images, width, 1, pixels], with the channels last in memory, as they lie."""
    return x.view(images, 1, -1, x.shape[1]).permute(0, 3, 1, 2)
