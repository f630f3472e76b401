"""Computes the gradient of a depthwise convolution's weight in a loop of ours, on CPUs.

    dw[c, i, j] = sum over n, y, x of grad[n, c, y, x] * input[n, c, s * y + i, s * x + j]       (s: the stride)

The library writes out each window of the input first, in blocks of its cache's size: 3 to 13 MB for a small network,
which is more than all that the network's step saves. The loop adds up the products where they are.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from tessera.ir.applications import apply

aten = torch.ops.aten
# Elements of a window from which the library's fp32 kernel is no longer the quicker one: with channels last, one of 3x3
# takes 0.7 of the loop's time, and no memory; those of 5x5 and 7x7 take 2.5 and 3.8 times as long (one core of an AMD
# EPYC with AVX2, torch 2.13). Its bf16 kernels take 16 to 80 times as long, of all windows.
LEAST = 16


def sums_windows(grad: Any, x: Any, weight: Any, how: Sequence[Any]) -> bool:
    """Whether a loop computes the gradient of a convolution's weight. `how`: as aten.convolution_backward takes it,
    from the bias's sizes on."""
    _, _, _, dilation, transposed, _, groups, mask = how
    if not mask[1] or grad.device.type != "cpu" or transposed or weight.dim() != 4:
        return False
    known = all(isinstance(n, int) for t in (grad, x, weight) for n in t.shape)
    depthwise = groups == x.shape[1] == weight.shape[0] and weight.shape[1] == 1
    wanted = grad.dtype == torch.bfloat16 or (
        grad.dtype == torch.float32 and prod(weight.shape[2:]) >= LEAST
    )
    plain = known and depthwise and all(n == 1 for n in dilation)
    return plain and wanted and apply("graph-sum-windows", what="convolution")


def weight_gradient(grad: Any, x: Any, weight: Any, how: Sequence[Any]) -> Any:
    """The gradient of the weight [C, 1, I, J], for `grad` [N, C, Y, X] and the input `x` [N, C, H, W]."""
    _, stride, padding, *_ = how
    rows, columns = padding[0], padding[-1]
    padded = aten.constant_pad_nd.default(x, [columns, columns, rows, rows])
    windows = padded.unfold(2, weight.shape[2], stride[0]).unfold(3, weight.shape[3], stride[-1])
    # Channels are the last index of what is multiplied, as they are in memory where that is chosen.
    along = grad.permute(0, 2, 3, 1)[:, :, :, None, None]
    summed = (along * windows.permute(0, 2, 3, 4, 5, 1)).sum((0, 1, 2))
    found = summed.permute(2, 0, 1).unsqueeze(1)
    return found.clone(memory_format=torch.contiguous_format)
