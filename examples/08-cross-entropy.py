"""Cross entropy over a vocabulary of 128 thousand, forward and backward.

The forward pass reads each row of logits once, ROWS pieces at a time, keeping a running maximum and sum of exponentials
for every column of its tile: a new maximum rescales the sum once for ROWS elements. The backward pass turns logits into
gradients in one more walk.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl

VOCABULARY = 128_256


ROWS, BLOCK = 4, 2048


TILE = 1024  # of a gradient


@tessera.jit
def loss_kernel(
    logits_ptr, targets_ptr, loss_ptr, lse_ptr, vocabulary, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * vocabulary
    at = tl.arange(0, ROWS)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    peak = tl.full((BLOCK,), -1.0e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocabulary, ROWS * BLOCK):
        x = tl.load(logits_ptr + start + at, mask=start + at < vocabulary, other=-float("inf"))
        x = x.to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, axis=0))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher[None, :]), axis=0)
        peak = higher
    highest = tl.max(peak, axis=0)
    lse = highest + tl.log(tl.sum(total * tl.exp(peak - highest), axis=0))
    target = tl.load(targets_ptr + row)
    tl.store(loss_ptr + row, lse - tl.load(logits_ptr + target).to(tl.float32))
    tl.store(lse_ptr + row, lse)


@tessera.jit
def gradient_kernel(
    logits_ptr, targets_ptr, lse_ptr, grad_ptr, vocabulary, scale, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1)  # neighbours in time are neighbours in memory
    offset = row.to(tl.int64) * vocabulary
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    x = tl.load(logits_ptr + offset + at, mask=inside, other=-float("inf")).to(tl.float32)
    chosen = at == tl.load(targets_ptr + row)
    grad = tl.exp(x - tl.load(lse_ptr + row)) - tl.where(chosen, 1.0, 0.0)
    tl.store(grad_ptr + offset + at, (grad * scale).to(grad_ptr.dtype.element_ty), mask=inside)


def cross_entropy(logits: Any, targets: Any, loss: Any, lse: Any) -> None:
    rows, vocabulary = logits.shape
    loss_kernel[(rows,)](
        logits, targets, loss, lse, vocabulary, ROWS=ROWS, BLOCK=BLOCK, num_warps=8
    )


def cross_entropy_gradient(logits: Any, targets: Any, lse: Any, grad: Any) -> None:
    """Gradient of the mean loss."""
    rows, vocabulary = logits.shape
    gradient_kernel[(tessera.cdiv(vocabulary, TILE), rows)](
        logits, targets, lse, grad, vocabulary, 1.0 / rows, BLOCK=TILE, num_warps=4
    )


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    logits, targets = device.normal(16, 5000), device.array(device.random.integers(0, 5000, 16))
    loss, lse, grad = device.empty(16), device.empty(16), device.empty(16, 5000)
    cross_entropy(logits, targets, loss, lse)
    cross_entropy_gradient(logits, targets, lse, grad)
    powers = np.exp(device.numpy(logits))
    chosen = powers[np.arange(16), device.numpy(targets)]
    print(
        "largest error:",
        common.relative_error(device.numpy(loss), np.log(powers.sum(axis=1) / chosen)),
    )
