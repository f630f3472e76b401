"""Softmax over the rows of a matrix, read once and written once.

A row that fits a tile stays in registers between its three steps (max, sum of exponentials, division). A longer row is
walked twice: the first walk keeps a running maximum and rescales the sum whenever it grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl

LONGEST_TILE = 16384


@tessera.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + at, powers / tl.sum(powers, axis=0), mask=inside)


@tessera.jit
def long_softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    out_ptr += row * out_stride
    at = tl.arange(0, BLOCK)
    # One running (max, sum) for each position of the tile: the loop has no reduction across elements.
    peak = tl.full((BLOCK,), -1.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        x = tl.load(x_ptr + start + at, mask=start + at < cols, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(peak, x)
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    highest = tl.max(peak, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(peak - highest), axis=0)
    for start in tl.range(0, cols, BLOCK, num_stages=3):
        inside = start + at < cols
        x = tl.load(x_ptr + start + at, mask=inside, other=-float("inf")).to(tl.float32)
        tl.store(out_ptr + start + at, tl.exp(x - highest) * scale, mask=inside)


def softmax(x: Any, out: Any) -> None:
    rows, cols = x.shape
    block = tessera.next_power_of_2(cols)
    kernel = softmax_kernel if block <= LONGEST_TILE else long_softmax_kernel
    block = min(block, LONGEST_TILE if kernel is softmax_kernel else 4096)
    warps = 2 if block <= 1024 else 4 if block <= 4096 and kernel is softmax_kernel else 8
    kernel[(rows,)](
        x, out, common.strides(x)[0], common.strides(out)[0], cols, BLOCK=block, num_warps=warps
    )


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    x, out = device.normal(1000, 781), device.empty(1000, 781)
    softmax(x, out)
    powers = np.exp(device.numpy(x))
    print(
        "largest error:",
        common.relative_error(device.numpy(out), powers / powers.sum(axis=1, keepdims=True)),
    )
